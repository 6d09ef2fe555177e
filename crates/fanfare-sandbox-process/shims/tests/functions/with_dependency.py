from fanfare_dep import WORD


def handler(event, context):
    return WORD
