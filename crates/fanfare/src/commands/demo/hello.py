import time


def handler(event, context):
    time.sleep(event.get("sleep_s", 0))
    return {"hello": event.get("name", "world")}
