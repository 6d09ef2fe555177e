def handler(event, context):
    return "not the library"
