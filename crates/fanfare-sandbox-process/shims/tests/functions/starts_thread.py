import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()


def handler(event, context):
    return "with a thread"
