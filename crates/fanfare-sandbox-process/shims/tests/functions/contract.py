"""What the tests call."""

import atexit
import copy
import errno
import os
import signal
import sys
import time

atexit.register(lambda: print("atexit hook"))
signal.signal(signal.SIGTERM, lambda _signum, _frame: print("sigterm hook"))


def handler(event, context):
    if type(event) is not dict or "do" not in event:
        return describe(event, context)
    return globals()["do_" + event["do"]](event, context)


def describe(event, context):
    http = context.http
    return {
        "event": event,
        "request_id": context.request_id,
        "function_name": context.function_name,
        "revision": context.revision,
        "sandbox_id": context.sandbox_id,
        "memory": context.memory_limit_in_mb,
        "remaining": context.get_remaining_time_in_millis(),
        "has_deadline": context.deadline_ms is not None,
        "method": http.method,
        "path": http.path,
        "query": http.query,
        "headers": dict(http.headers),
        "raw_headers": http.raw_headers,
        "body_bytes": len(http.body),
        "is_base64": http.is_base64,
        "pid": os.getpid(),
    }


def do_return(event, context):
    return event.get("value")


def do_http(event, context):
    return context.http


def do_http_items(event, context):
    http = context.http
    names = ("method", "path", "query", "headers", "is_base64", "body", "raw_headers")
    none = [http.get("none"), http.get("none", 7), "none" in http]
    for ask in (lambda: http["none"], lambda: http.none):
        try:
            ask()
        except Exception as e:
            none.append(type(e).__name__)
    return {
        "same": [http[name] is getattr(http, name) and name in http and http.get(name) is http[name] for name in names],
        "body": http["body"].decode(),
        "raw_headers": http["raw_headers"],
        "listed": list(http),
        "none": none,
        "copied": copy.copy(http)["body"].decode(),
    }


def do_write(event, context):
    # As an interpreter's own writes and those of libraries may come.
    sys.stdout.write(event["text"])
    sys.stderr.buffer.write(event["text"].encode())
    return "written"


def do_write_in_stream(event, context):
    def pieces():
        print("stream 1", end="")
        yield "pie"
        print(", 2", end="")
        yield "ces"

    return pieces()


def do_bytes(event, context):
    return bytes(event["value"])


def do_fork(event, context):
    how = event["how"]
    if "stream" in how:
        return fork_stream(how)
    pid = os.fork()
    if pid == 0:
        if how == "raises":
            raise ValueError("in the child")
        return "child"
    return "parent, child ended with %d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork_stream(how):
    yield "parent, "
    pid = os.fork()
    if pid == 0:
        if how == "breaks a stream":
            raise ValueError("in the child")
        yield "child"
        return
    yield "child ended with %d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def do_stream(event, context):
    return (piece for piece in event["value"])


def do_stream_bytes(event, context):
    return (bytes(piece) for piece in event["value"])


def do_stream_with_status(event, context):
    return {"statusCode": 201, "headers": {"content-type": "text/event-stream"}, "body": iter(["data: 1\n\n"])}


def do_stream_error(event, context):
    for n in range(event["after"]):
        yield "piece %d" % n
    raise ValueError("in the stream")


def do_stream_slowly(event, context):
    try:
        for n in range(1000000):
            yield "%d\n" % n
    finally:
        print("stream closed", flush=True)


def do_full(event, context):
    return event["answer"]


def do_fill(event, context):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/full")


def do_not_ready(event, context):
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def do_raise(event, context):
    raise ValueError("the value is wrong")


def do_interrupt(event, context):
    raise KeyboardInterrupt("as if at a terminal")


def do_not_json(event, context):
    return {"value": object()}


def do_exit(event, context):
    sys.exit(event["status"])


def do_exit_now(event, context):
    os._exit(event["status"])


def do_print(event, context):
    print("to stdout")
    print("to stderr", file=sys.stderr)
    context.logger.info("to the log")
    print("no newline", end="")
    return "printed"


def do_take_outputs(event, context):
    if event["how"] == "close":
        sys.stdout.close()
        sys.stderr.close()
    else:
        sys.stdout = sys.stderr = None
    return "taken"


class End(BaseException):
    pass


def do_stream_that_will_not_close(event, context):
    try:
        while True:
            yield "piece\n"
    finally:
        print("it will not", flush=True)
        raise End


def do_wait(event, context):
    """Until there is a file: how a test holds a request without a clock."""
    print("waiting", flush=True)
    while not os.path.exists(event["file"]):
        time.sleep(0.002)
    return "waited"


def do_pid(event, context):
    return os.getpid()


not_callable = 42


async def async_handler(event, context):
    import asyncio

    await asyncio.sleep(0)
    if event.get("do") == "raise":
        raise ValueError("the value is wrong")
    if event.get("do") == "loop":
        return id(asyncio.get_running_loop())
    return {"async": True}


async def async_stream(event, context):
    import asyncio

    for n in range(3):
        await asyncio.sleep(0)
        yield "piece %d" % n
