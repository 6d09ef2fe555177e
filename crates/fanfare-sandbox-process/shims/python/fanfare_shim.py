"""Loads a Python handler and serves HTTP/1.1 on an inherited socket. PROTOCOL.md says how it is started and driven.

Starting fast is its purpose: it uses C modules (`_socket`, `_signal`) where the ones around them import `enum` and
`re`, and imports everything that most requests do not need where it is needed.
"""

import _signal
import _socket
import errno
import io
import os
import select
import sys
import time

HEAD_BYTES_MAX = 64 * 1024
HEADERS_MAX = 256
BODY_BYTES_MAX_DEFAULT = 64 << 20
CHUNK_LINE_BYTES_MAX = 4096
RECV_BYTES = 64 * 1024
CONNECTIONS_MAX = 1024
PACKET_BYTES_MAX = 128 * 1024
FILTER_INSTRUCTIONS_MAX = 4096
JOIN_FILES_MAX = 8
MOUNTS_MAX = 4
# What an import may leave in directories that each sandbox has for itself: it is copied at each start.
LEFT_BYTES_MAX = 16 << 20
LEFT_FILES_MAX = 1000
CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
PROCESSES_MAX = 1000
DETAIL_CHARS_MAX = 300
TRACE_BYTES_MAX = 8192
STACK_LINES_MAX = 100
STACK_LINE_CHARS_MAX = 400
# A peer that stands still for this long in the middle of a body, when the request has no deadline of its own.
IO_TIMEOUT_S = 60.0
# How long, and for how many bytes, a refused request's rest is read so that its sender sees the refusal.
LINGER_S = 1.0
LINGER_BYTES_MAX = 8 << 20
STATUS_PROTOCOL_ERROR = 70

TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Everything a field value may not hold: controls other than tab.
CONTROLS = bytes(c for c in range(32) if c != 9) + b"\x7f"
CONTROLS_AND_SPACE = CONTROLS + b"\t "
# What a handler may not say about its connection: the shim frames the answer.
CONNECTION_FIELDS = frozenset(
    (b"connection", b"content-length", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
REASONS = {
    200: b"OK", 201: b"Created", 202: b"Accepted", 204: b"No Content", 206: b"Partial Content",
    301: b"Moved Permanently", 302: b"Found", 303: b"See Other", 304: b"Not Modified",
    307: b"Temporary Redirect", 308: b"Permanent Redirect",
    400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed",
    409: b"Conflict", 410: b"Gone", 413: b"Content Too Large", 422: b"Unprocessable Content",
    429: b"Too Many Requests", 431: b"Request Header Fields Too Large",
    500: b"Internal Server Error", 501: b"Not Implemented", 502: b"Bad Gateway", 503: b"Service Unavailable",
    504: b"Gateway Timeout", 505: b"HTTP Version Not Supported",
}  # fmt: skip
TEXT = "text/plain; charset=utf-8"
BINARY = "application/octet-stream"
JSON = "application/json"
# Both outputs, below whatever the handler puts in their place.
LOGS = []


class Failure(Exception):
    """The sandbox cannot start; `kind` is one of the protocol's."""

    def __init__(self, kind, detail, trace=""):
        super().__init__(detail)
        self.kind, self.detail, self.trace = kind, detail[:DETAIL_CHARS_MAX], trace


class Refused(Exception):
    """The request is not answered by the handler."""

    def __init__(self, status, detail):
        super().__init__(detail)
        self.status, self.detail = status, detail


class Closed(Exception):
    """The peer is gone, or has stood still too long."""


def flush(stream):
    """Sends what the handler wrote on its way, unless it has taken its output away."""
    try:
        stream.flush()
    except Exception:
        pass  # closed, replaced, None or a broken pipe: nobody would read what could be said about it


class Log(io.FileIO):
    """Standard output or standard error, which knows whether the last line that went out has ended."""

    unended = False

    def write(self, data):
        count = super().write(data)
        if count:
            self.unended = data[count - 1] != 10
        return count


def know_of_line_ends():
    """Has both outputs know where they stand. Nothing else about them changes."""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        raw = Log(old.fileno(), "wb", closefd=False)
        raw.name = old.name
        new = io.TextIOWrapper(
            raw if old.write_through else io.BufferedWriter(raw),
            encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=old.write_through,
        )  # fmt: skip
        new.mode = "w"
        setattr(sys, name, new)
        setattr(sys, "__%s__" % name, new)
        LOGS.append(raw)


def end_lines():
    """Ends what the handler has left of a line, so that the next request's output is no part of it."""
    flush(sys.stdout)
    flush(sys.stderr)
    for raw in LOGS:
        if raw.unended:
            try:
                raw.write(b"\n")
            except Exception:
                raw.unended = False  # as above


def log(text):
    """Writes to the sandbox's log, if the handler has left it where it was."""
    try:
        sys.stderr.write(text)
    except Exception:
        pass  # as above


# --- words with the runtime -------------------------------------------------------------------------------------


def to_json(value):
    """Strict JSON text; raises TypeError or ValueError for what is not JSON."""
    global _encode
    if _encode is None:
        import json

        _encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    return _encode(value)


_encode = None


def say(sock, **message):
    sock.sendall(to_json(message).encode("utf-8", "backslashreplace"))


def say_failed(sock, failure):
    trace = failure.trace.encode("utf-8", "backslashreplace")[-TRACE_BYTES_MAX:].decode("utf-8", "ignore")
    say(sock, type="failed", kind=failure.kind, detail=failure.detail, trace=trace)


def protocol_error(what):
    log("fanfare: %s\n" % what)
    flush(sys.stderr)
    os._exit(STATUS_PROTOCOL_ERROR)


def parse_packet(packet):
    # Without json, for it costs more than the rest of a start.
    if packet == b'{"type":"go"}':
        return {"type": "go"}
    if packet == b'{"type":"go","mounts":["/tmp","/dev/shm"]}':
        return {"type": "go", "mounts": ["/tmp", "/dev/shm"]}
    import json

    try:
        message = json.loads(packet)
    except ValueError:
        message = None
    if type(message) is not dict:
        protocol_error("a message that is not a JSON object")
    return message


def receive_packet(sock, fds_max):
    """One packet and the descriptors it carries; an empty packet is the end."""
    size = _socket.CMSG_SPACE(4 * fds_max) if fds_max else 0
    packet, ancillary, flags, _ = sock.recvmsg(PACKET_BYTES_MAX, size, _socket.MSG_CMSG_CLOEXEC)
    fds = []
    for level, kind, data in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            data = data[: len(data) // 4 * 4]
            fds += [int.from_bytes(data[i : i + 4], sys.byteorder) for i in range(0, len(data), 4)]
    if flags & _socket.MSG_TRUNC:
        protocol_error("a message of more than %d bytes" % PACKET_BYTES_MAX)
    return packet, fds


def adopt(fd):
    """The socket behind an inherited descriptor, which programs started by the handler do not inherit in turn."""
    os.set_inheritable(fd, False)
    return _socket.socket(fileno=fd)


def is_env(env):
    return type(env) is dict and all(type(k) is str and type(v) is str for k, v in env.items())


def add_env(env):
    if not is_env(env):
        protocol_error("an env that is not an object of texts")
    try:
        os.environ.update(env)
    except ValueError as e:
        raise Failure("internal", "the environment cannot be set: %s" % e) from None


def pass_gate(gate, meanwhile=None):
    """Says hello and waits to be let through; False when the runtime has gone instead.

    `meanwhile` is done while there is nothing to do.
    """
    try:
        gate.sendall(b'{"type":"hello"}')
        if meanwhile is not None and not select.select([gate], [], [], 0)[0]:
            meanwhile()
        packet, join = receive_packet(gate, JOIN_FILES_MAX + MOUNTS_MAX)
    except ConnectionError:
        return False
    if not packet:
        return False
    message = parse_packet(packet)
    if message.get("type") != "go":
        protocol_error("%.40r where go was expected" % message.get("type"))
    places = message.get("mounts", [])
    if type(places) is not list or len(places) > min(len(join), MOUNTS_MAX):
        protocol_error("mounts must be a list of at most %d directories, with a descriptor each" % MOUNTS_MAX)
    cut = len(join) - len(places)
    join_cgroups(join[:cut])
    if places:
        separate(places, join[cut:])
    add_env(message.get("env", {}))
    if message.get("seccomp_filter"):
        install_filter(message["seccomp_filter"])
    return True


def join_cgroups(files):
    """Moves this process, before anything of the sandbox is allocated."""
    try:
        for fd in files:
            os.write(fd, b"0")
            os.close(fd)
    except OSError as e:
        raise Failure("internal", "a cgroup cannot be joined: %s" % e) from None


def libc_call(name, *arguments):
    """Calls the C library; raises what it says."""
    global _libc
    import ctypes

    if _libc is None:
        _libc = ctypes.CDLL(None, use_errno=True)
        _libc.syscall.restype = ctypes.c_long
    result = getattr(_libc, name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


_libc = None


def separate(places, mounts):
    """Takes a forked sandbox out of what it shares with its template and its siblings, and gives up the right to."""
    MOVE_MOUNT, AT_FDCWD, MOVE_MOUNT_F_EMPTY_PATH = 429, -100, 4
    try:
        libc_call("unshare", CLONE_NEWNS | CLONE_NEWIPC)
        for place, mount in zip(places, mounts):
            if os.listdir(place):
                copy_tree(place, "/proc/self/fd/%d" % mount)
            libc_call("syscall", MOVE_MOUNT, mount, b"", AT_FDCWD, place.encode(), MOVE_MOUNT_F_EMPTY_PATH)
            os.close(mount)
        drop_capabilities()
        confine()
    except OSError as e:
        raise Failure("internal", "the sandbox cannot be separated from its siblings: %s" % e) from None


def copy_tree(source, target):
    """Copies what an import has left in a directory."""
    import shutil

    def copy(source, target):
        # Sockets and pipes are ends of something that is not there.
        return shutil.copy2(source, target) if os.path.isfile(source) else target

    try:
        shutil.copytree(source, target, symlinks=True, copy_function=copy, dirs_exist_ok=True)
    except shutil.Error as e:
        raise OSError("what the import left in %s cannot be copied: %s" % (source, e)) from None


def drop_capabilities():
    PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, CAPABILITY_VERSION_3 = 47, 4, 0x20080522
    libc_call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = CAPABILITY_VERSION_3.to_bytes(4, sys.byteorder) + bytes(4)
    libc_call("capset", header, bytes(24))


def confine(version=None):
    """Keeps this process and its children from signals, memory and abstract sockets of processes that are not theirs,
    as far as the kernel's Landlock, which may be taken for an older one, can."""
    CREATE_RULESET, ADD_RULE, RESTRICT_SELF, VERSION, PATH_BENEATH = 444, 445, 446, 1, 1
    try:
        version = version or libc_call("syscall", CREATE_RULESET, None, 0, VERSION)
    except OSError:
        return  # a kernel without it; the runtime says so
    rules = landlock_rules(version)
    if rules is None:
        return  # as above
    attributes, granted = rules
    fd = libc_call("syscall", CREATE_RULESET, attributes, len(attributes), 0)
    if granted:
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        rule = granted.to_bytes(8, sys.byteorder) + root.to_bytes(4, sys.byteorder)
        libc_call("syscall", ADD_RULE, fd, PATH_BENEATH, rule, 0)
        os.close(root)
    libc_call("syscall", RESTRICT_SELF, fd, 0)
    os.close(fd)


def landlock_rules(version):
    """What a Landlock of this version is told to restrict (`struct landlock_ruleset_attr`), and what it is told to
    grant everywhere; None where it would keep files from being moved."""
    REFER = 1 << 13
    ABSTRACT_UNIX_SOCKET, SIGNAL = 1, 2
    if version >= 6:
        return b"".join(part.to_bytes(8, sys.byteorder) for part in (0, 0, ABSTRACT_UNIX_SOCKET | SIGNAL)), 0
    if version >= 2:
        # Confines no signals, and demands that something about files be restricted. Whatever that is, moving them
        # between directories is forbidden unless it is granted: so that is all that is restricted, and is granted.
        return REFER.to_bytes(8, sys.byteorder), REFER
    return None  # the first cannot grant it


def install_filter(text):
    """Adds a seccomp filter to this process. It can only tighten."""
    try:
        import ctypes

        code = bytes.fromhex(text)
        if len(code) % 8 or not 8 <= len(code) <= 8 * FILTER_INSTRUCTIONS_MAX:
            raise ValueError("it has %d bytes" % len(code))

        class Program(ctypes.Structure):
            _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

        program = Program(len(code) // 8, code)
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
        libc_call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    except Exception as e:
        raise Failure("internal", "the seccomp filter cannot be installed: %s" % e) from None


# --- the handler ------------------------------------------------------------------------------------------------


class Settings:
    """What the environment says."""

    def __init__(self, env):
        self.file = env.get("FANFARE_HANDLER_FILE", "")
        self.handler = env.get("FANFARE_HANDLER", "") or "handler"
        self.code_dir = env.get("FANFARE_CODE_DIR", "")
        self.deps = [d for d in env.get("FANFARE_DEPS_DIR", "").split(":") if d]
        if not self.file:
            raise Failure("internal", "FANFARE_HANDLER_FILE is not set")
        self.processes = self.number(env, "FANFARE_HANDLER_PROCESSES", 1, 1, PROCESSES_MAX)
        self.body_bytes_max = self.number(env, "FANFARE_BODY_BYTES_MAX", BODY_BYTES_MAX_DEFAULT, 0, 1 << 40)
        self.memory_limit_mb = self.number(env, "FANFARE_MEMORY_LIMIT_MB", 0, 0, 1 << 40)

    @staticmethod
    def number(env, name, default, low, high):
        text = env.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 16 and low <= int(text) <= high):
            raise Failure("internal", "%s is %.40r; it must be a number from %d to %d" % (name, text, low, high))
        return int(text)


def load(settings):
    """The handler, imported. Raises Failure."""
    try:
        os.chdir(settings.code_dir or ".")
    except OSError as e:
        raise Failure("internal", "the code's directory cannot be entered: %s" % e) from None
    root = os.getcwd()
    here = os.path.dirname(os.path.abspath(sys.argv[0]))
    sys.path[:] = [root, *settings.deps, *(p for p in sys.path if p not in ("", here, root))]
    sys.argv[:] = [settings.file]
    path = os.path.join(root, settings.file)
    if not os.path.isfile(path):
        raise Failure("handler-not-found", "there is no file %r in the function's code" % settings.file)
    try:
        module = import_file(settings.file, path)
    except (Exception, SystemExit, KeyboardInterrupt) as e:
        trace = format_trace(e)
        log(trace)
        flush(sys.stderr)
        raise Failure("import-failed", "%s: %s" % (type(e).__name__, e), trace) from None
    handler = module
    for part in settings.handler.split("."):
        handler = getattr(handler, part, None)
    if handler is None:
        raise Failure("handler-not-found", "%r has no %r" % (settings.file, settings.handler))
    if not callable(handler):
        what = type(handler).__name__
        raise Failure("handler-not-found", "%r in %r is %s, not a function" % (settings.handler, settings.file, what))
    CO_COROUTINE, CO_ASYNC_GENERATOR = 0x80, 0x200
    if getattr(getattr(handler, "__code__", None), "co_flags", 0) & (CO_COROUTINE | CO_ASYNC_GENERATOR):
        import asyncio  # noqa: F401  (now rather than in the first request)
    return handler


def import_file(file, path):
    """Imports it under the name that other modules of the code would import it by, where it has one."""
    stem, suffix = os.path.splitext(os.path.normpath(file))
    parts = stem.split(os.sep)
    if suffix == ".py" and all(p and "." not in p for p in parts) and parts[0] not in sys.modules:
        name = ".".join(parts)
        module = __import__(name, fromlist=["__name__"] if len(parts) > 1 else ())
        if os.path.realpath(getattr(module, "__file__", None) or "") == os.path.realpath(path):
            return module
    # A file that cannot be named in an import statement, or whose name is taken (json.py).
    from importlib.machinery import SourceFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    name = "_fanfare_handler"
    module = module_from_spec(spec_from_loader(name, SourceFileLoader(name, path)))
    sys.modules[name] = module
    module.__spec__.loader.exec_module(module)
    return module


def format_trace(error):
    """The trace without the shim's and the import system's own frames."""
    import traceback

    tb = error.__traceback__
    while tb and (
        tb.tb_frame.f_code.co_filename == format_trace.__code__.co_filename
        or tb.tb_frame.f_code.co_filename.startswith("<frozen importlib")
    ):
        tb = tb.tb_next
    return "".join(traceback.format_exception(type(error), error, tb))


class HttpInfo(dict):
    """`context.http`: the request as it came, by attribute and by item. A dictionary, so that it can be answered or
    logged as JSON; what JSON cannot hold (the body's bytes, and the fields as they were sent) is not listed in it."""

    __slots__ = ("raw_headers", "body")

    def __missing__(self, name):
        if name in self.__slots__:
            return getattr(self, name)
        raise KeyError(name)

    def __contains__(self, name):
        return name in self.__slots__ or super().__contains__(name)

    def get(self, name, default=None):
        return self[name] if name in self else default

    def __getattr__(self, name):
        # What a slot lacks is asked for here, too: in a copy made by `copy` or `pickle`.
        if name not in self.__slots__ and name in self:
            return self[name]
        raise AttributeError(name)


class Context:
    """What a handler is told beside its event."""

    __slots__ = ("request_id", "deadline_ms", "http", "_deadline", "_server")

    def __init__(self, server, request_id, deadline):
        self._server, self.request_id, self._deadline = server, request_id, deadline
        self.deadline_ms = None if deadline is None else int((time.time() + deadline - time.monotonic()) * 1000)

    @property
    def function_name(self):
        return os.environ.get("FANFARE_FUNCTION_NAME", "")

    @property
    def revision(self):
        return os.environ.get("FANFARE_REVISION", "")

    @property
    def sandbox_id(self):
        return os.environ.get("FANFARE_SANDBOX_ID", "")

    @property
    def memory_limit_in_mb(self):
        return self._server.settings.memory_limit_mb

    def get_remaining_time_in_millis(self):
        """Milliseconds until the request's deadline, never negative; None when it has none."""
        return None if self._deadline is None else max(0, int((self._deadline - time.monotonic()) * 1000))

    @property
    def logger(self):
        """A logger that writes lines to standard error."""
        import logging

        logger = logging.getLogger(self.function_name or "function")
        if not logger.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(os.environ.get("FANFARE_LOG_LEVEL", "INFO").upper())
            logger.propagate = False
        return logger


def make_event(http):
    """The body as a handler wants it."""
    if not http.body:
        return {}
    try:
        text = http.body.decode("utf-8")
    except UnicodeDecodeError:
        import binascii

        http["is_base64"] = True
        return binascii.b2a_base64(http.body, newline=False).decode("ascii")
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# --- answers ----------------------------------------------------------------------------------------------------


class Answer:
    """Status, header fields (pairs of bytes, framing excluded), and a body: bytes, or an iterator of pieces."""

    __slots__ = ("status", "fields", "body")

    def __init__(self, status, content_type, body):
        self.status, self.body = status, body
        self.fields = [(b"content-type", content_type.encode("ascii"))] if content_type else []


def is_stream(value):
    return hasattr(value, "__next__") or hasattr(value, "__anext__")


def make_answer(value):
    """What a handler returned, as an answer. Raises TypeError or ValueError for what cannot be sent."""
    if type(value) is dict and "statusCode" in value:
        return full_answer(value)
    if isinstance(value, str):
        return Answer(200, TEXT, value.encode("utf-8"))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Answer(200, BINARY, bytes(value))
    if is_stream(value):
        return Answer(200, "", value)
    return Answer(200, JSON, json_bytes(value))


def json_bytes(value):
    try:
        return to_json(value).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as e:
        raise ValueError("the handler's answer is not JSON: %s" % e) from None


def full_answer(value):
    status = value["statusCode"]
    if isinstance(status, str) and status.isascii() and status.isdigit() and len(status) == 3:
        status = int(status)
    if type(status) is not int or not 200 <= status <= 599:
        raise ValueError("statusCode is %.40r; it must be a number from 200 to 599" % (status,))
    body = value.get("body")
    content_type = JSON
    if isinstance(body, str) and value.get("isBase64Encoded"):
        import binascii

        body, content_type = binascii.a2b_base64(body), BINARY
    elif isinstance(body, str):
        body = body.encode("utf-8")
    elif isinstance(body, (bytes, bytearray, memoryview)):
        body, content_type = bytes(body), BINARY
    elif body is None:
        body, content_type = b"", ""
    elif is_stream(body):
        content_type = ""
    else:
        body = json_bytes(body)
    answer = Answer(status, content_type, body)
    fields = []
    for name, field in pairs(value, "headers"):
        fields += [header(name, v) for v in (field if isinstance(field, (list, tuple)) else (field,))]
    for name, field in pairs(value, "multiValueHeaders"):
        if not isinstance(field, (list, tuple)):
            raise TypeError("multiValueHeaders[%.40r] is not a list" % (name,))
        fields += [header(name, v) for v in field]
    cookies = value.get("cookies") or ()
    if not isinstance(cookies, (list, tuple)):
        raise TypeError("cookies is not a list")
    fields += [header("set-cookie", v) for v in cookies]
    fields = [(name, field) for name, field in fields if name.lower() not in CONNECTION_FIELDS]
    answer.fields = fields if has_content_type(fields) else answer.fields + fields
    return answer


def has_content_type(fields):
    return any(name.lower() == b"content-type" for name, _ in fields)


def pairs(value, key):
    fields = value.get(key) or {}
    if not isinstance(fields, dict):
        raise TypeError("%s is not an object" % key)
    return fields.items()


def header(name, value):
    raw_name = name.encode("ascii", "replace") if isinstance(name, str) else b""
    if not raw_name or raw_name.translate(None, TOKEN):
        raise ValueError("%.40r is not the name of a header field" % (name,))
    if not isinstance(value, (str, int, float)):
        raise TypeError("header %s is %s, not text" % (name, type(value).__name__))
    raw = str(value).encode("utf-8")
    if len(raw) != len(raw.translate(None, CONTROLS)):
        raise ValueError("header %s holds a line break or another control character" % name)
    return raw_name, raw.strip(b" \t")


def problem(status, reason, title, detail, request_id, **more):
    """A problem document (RFC 9457) in the platform's own words."""
    kind = "urn:fanfare:reason:" + reason
    body = {"type": kind, "title": title, "status": status, "detail": detail, "reason": reason, **more}
    body["request_id"] = request_id
    answer = Answer(status, "application/problem+json", to_json(body).encode("utf-8", "backslashreplace"))
    answer.fields.append((b"x-fanfare-reason", reason.encode("ascii")))
    return answer


def name_refused_forks():
    """Marks the error of a fork that the limit of processes forbids: a socket's may be the same."""

    def named(fork):
        def named_fork():
            try:
                return fork()
            except BlockingIOError as error:
                error.fanfare_reason = "process-limit"
                raise

        return named_fork

    os.fork, os.forkpty = named(os.fork), named(os.forkpty)


def starts_nothing_more(error):
    """Whether an error says that no process or thread could be started."""
    if getattr(error, "fanfare_reason", "") == "process-limit":
        return True
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    module = last.tb_frame.f_globals.get("__name__", "") if last is not None else ""
    if module == "subprocess":
        return isinstance(error, BlockingIOError)
    return module == "threading" and isinstance(error, RuntimeError) and "start new thread" in str(error)


def reason_of(error):
    """Why a handler raised an error: by a limit of its sandbox, or for reasons of its own; and what to do."""
    if starts_nothing_more(error):
        return "process-limit", "start fewer processes and threads, or allow more with `fanfare update %s --pids N`"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no-space", "write less, or give its /tmp more with `fanfare update %s --tmp SIZE`"
    return "handler-error", "see the message; `fanfare logs %s` has the rest"


def handler_error(error, request_id):
    trace = format_trace(error)
    log(trace)
    name = type(error).__name__
    try:
        detail = "%s: %s" % (name, error)
    except Exception:
        detail = name
    stack = [line[:STACK_LINE_CHARS_MAX] for line in trace.splitlines()[-STACK_LINES_MAX:]]
    title = "The handler raised an error"
    reason, hint = reason_of(error)
    hint %= os.environ.get("FANFARE_FUNCTION_NAME") or "NAME"
    return problem(502, reason, title, detail[:1000], request_id, hint=hint, error_type=name, stack=stack)


def piece_bytes(piece):
    if isinstance(piece, str):
        return piece.encode("utf-8")
    if isinstance(piece, (bytes, bytearray, memoryview)):
        return bytes(piece)
    raise TypeError("a stream yielded %s; it must yield text or bytes" % type(piece).__name__)


# --- requests ---------------------------------------------------------------------------------------------------


class Connection:
    """A socket and what has been read from it but not yet used."""

    __slots__ = ("sock", "fd", "buffer", "deadline")

    def __init__(self, sock, buffer=b""):
        self.sock, self.fd, self.buffer = sock, sock.fileno(), bytearray(buffer)
        # Of the request in hand; None before it is known and when it has none.
        self.deadline = None
        # Sets O_NONBLOCK: the paths that need not wait use the descriptor alone, with one system call each.
        sock.settimeout(IO_TIMEOUT_S)

    def receive(self, count):
        """Waits for some bytes; none at the end of the stream."""
        left = IO_TIMEOUT_S if self.deadline is None else self.deadline - time.monotonic()
        if left <= 0:
            raise Closed("the time was over before the request was whole")
        self.sock.settimeout(left)
        try:
            return self.sock.recv(count)
        except OSError as e:
            raise Closed(str(e)) from None

    def fill_idle(self):
        """Reads what is there; False when the connection is to be closed."""
        try:
            data = os.read(self.fd, RECV_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.buffer += data
        return bool(data)

    def has_request(self):
        """A whole head is here, or so much that it must be refused."""
        return b"\r\n\r\n" in self.buffer or len(self.buffer) > HEAD_BYTES_MAX

    def take(self, count):
        data = bytes(memoryview(self.buffer)[:count])
        del self.buffer[:count]
        return data

    def take_line(self, limit):
        """A line without its end."""
        while True:
            at = self.buffer.find(b"\r\n")
            if 0 <= at <= limit:
                return self.take(at + 2)[:-2]
            if at > limit or len(self.buffer) > limit + 2:
                raise Refused(400, "a line of the chunked body has more than %d bytes" % limit)
            data = self.receive(RECV_BYTES)
            if not data:
                raise Closed("in a chunked body")
            self.buffer += data

    def take_exactly(self, count):
        if len(self.buffer) >= count:
            return self.take(count)
        missing = count - len(self.buffer)
        parts = [self.take(len(self.buffer))]
        while missing:
            data = self.receive(min(missing, 4 * RECV_BYTES))
            if not data:
                raise Closed("in a body")
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def send(self, data):
        try:
            try:
                sent = os.write(self.fd, data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                if self.deadline is not None:
                    self.sock.settimeout(max(0.1, self.deadline - time.monotonic()))
                self.sock.sendall(memoryview(data)[sent:])
        except OSError as e:
            raise Closed(str(e)) from None

    def linger(self):
        """Lets the peer read a refusal that it did not wait for."""
        try:
            self.sock.shutdown(_socket.SHUT_WR)
            end, left = time.monotonic() + LINGER_S, LINGER_BYTES_MAX
            while left > 0 and time.monotonic() < end:
                self.sock.settimeout(max(0.001, end - time.monotonic()))
                data = self.sock.recv(RECV_BYTES)
                if not data:
                    break
                left -= len(data)
        except OSError:
            pass  # it has gone: nothing is left to tell it


class Request:
    """A head, checked."""

    __slots__ = ("method", "target", "fields", "minor", "keep", "length", "chunked", "expects", "request_id", "deadline")

    def __init__(self, head):
        lines = head.split(b"\r\n")
        if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
            raise Refused(400, "a line of the head does not end with CRLF")
        parts = lines[0].split(b" ")
        if len(parts) != 3 or not parts[0] or parts[0].translate(None, TOKEN) or not parts[1]:
            raise Refused(400, "the request line is malformed")
        if len(parts[1]) != len(parts[1].translate(None, CONTROLS_AND_SPACE)):
            raise Refused(400, "the request target holds a control character")
        if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
            wrong_version = parts[2][:5] == b"HTTP/" and len(parts[2]) == 8
            raise Refused(505 if wrong_version else 400, "the version must be HTTP/1.1 or HTTP/1.0")
        if len(lines) - 1 > HEADERS_MAX:
            raise Refused(431, "more than %d header fields" % HEADERS_MAX)
        self.method, self.target = parts[0].decode("ascii"), parts[1].decode("latin-1")
        self.minor = parts[2][-1] - 48
        self.fields = [self.field(line) for line in lines[1:]]
        self.frame()

    @staticmethod
    def field(line):
        name, colon, value = line.partition(b":")
        if not colon or not name or name.translate(None, TOKEN):
            raise Refused(400, "a header field is malformed")
        value = value.strip(b" \t")
        if len(value) != len(value.translate(None, CONTROLS)):
            raise Refused(400, "a header field holds a control character")
        return name.lower().decode("ascii"), value.decode("latin-1")

    def frame(self):
        """Where the body ends and whether the connection goes on; anything ambiguous is refused."""
        lengths, codings, connection = [], [], []
        self.expects, self.request_id, self.deadline = False, "", None
        for name, value in self.fields:
            if name == "content-length":
                lengths += [v.strip(" \t") for v in value.split(",")]
            elif name == "transfer-encoding":
                codings.append(value.lower())
            elif name == "connection":
                connection += [v.strip(" \t").lower() for v in value.split(",")]
            elif name == "expect":
                self.expects = value.lower() == "100-continue" and self.minor == 1
            elif name == "x-request-id":
                self.request_id = value
            elif name == "x-fanfare-deadline-ms" and value.isascii() and value.isdigit() and len(value) <= 12:
                self.deadline = time.monotonic() + int(value) / 1000
        self.keep = "close" not in connection and (self.minor == 1 or "keep-alive" in connection)
        self.chunked = bool(codings)
        if codings and (lengths or self.minor == 0):
            raise Refused(400, "Transfer-Encoding with Content-Length or with HTTP/1.0 is ambiguous")
        if codings and codings != ["chunked"]:
            raise Refused(501, "the only transfer coding is chunked, once")
        if len(set(lengths)) > 1:
            raise Refused(400, "several values of Content-Length")
        length = lengths[0] if lengths else "0"
        if not (length.isascii() and length.isdigit() and len(length) <= 18):
            raise Refused(400, "Content-Length is not a number")
        self.length = int(length)


def read_body(connection, request, limit):
    if not request.chunked and request.length == 0:
        return b""
    if request.length > limit:
        raise Refused(413, "the body has %d bytes; the limit is %d" % (request.length, limit))
    if request.expects and not connection.buffer:
        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    if not request.chunked:
        return connection.take_exactly(request.length)
    parts, total = [], 0
    while True:
        line = connection.take_line(CHUNK_LINE_BYTES_MAX)
        digits = line.partition(b";")[0].rstrip(b" \t")
        if not digits or len(digits) > 15 or digits.translate(None, b"0123456789abcdefABCDEF"):
            raise Refused(400, "the size of a chunk is not a hexadecimal number")
        size = int(digits, 16)
        if size == 0:
            break
        total += size
        if total > limit:
            raise Refused(413, "the body has more than the limit of %d bytes" % limit)
        parts.append(connection.take_exactly(size))
        if connection.take_exactly(2) != b"\r\n":
            raise Refused(400, "a chunk is longer than its size")
    for _ in range(HEADERS_MAX):
        if not connection.take_line(HEAD_BYTES_MAX):
            return b"".join(parts)
    raise Refused(431, "more than %d trailer fields" % HEADERS_MAX)


class Server:
    """Turns requests on a connection into calls of the handler, one at a time."""

    def __init__(self, settings, handler):
        self.settings, self.handler = settings, handler
        # The process that takes requests; one that the handler forks has a copy of this.
        self.pid = os.getpid()
        self.stopping = False
        self.loop = None

    def serve(self, connection):
        """Answers every whole request that is here; False when the connection is to be closed."""
        try:
            while connection.has_request():
                if not self.serve_one(connection) or self.stopping:
                    return False
        except Closed:
            return False
        return True

    def serve_one(self, connection):
        request = None
        try:
            end = connection.buffer.find(b"\r\n\r\n")
            if not 0 <= end <= HEAD_BYTES_MAX:
                raise Refused(431, "the head has more than %d bytes" % HEAD_BYTES_MAX)
            head = connection.take(end + 4)[:-4]
            # One empty line before a request is forgiven, as RFC 9112 asks.
            request = Request(head[2:] if head[:2] == b"\r\n" else head)
            connection.deadline = request.deadline
            body = read_body(connection, request, self.settings.body_bytes_max)
        except Refused as e:
            reason = "too-large" if e.status in (413, 431) else "bad-request"
            request_id = request.request_id if request else ""
            answer = problem(e.status, reason, "The request was refused", e.detail, request_id)
            self.send(connection, answer, head=request is not None and request.method == "HEAD", minor=1, keep=False)
            connection.linger()
            return False
        answer = self.call(request, body)
        self.leave_if_forked()
        if isinstance(answer.body, Stream):
            flush(sys.stdout)
        else:
            end_lines()
        keep = request.keep and not self.stopping
        return self.send(connection, answer, request.method == "HEAD", request.minor, keep)

    def call(self, request, body):
        context = Context(self, request.request_id, request.deadline)
        target = request.target
        if target[:1] != "/" and "://" in target:
            target = "/" + target.split("://", 1)[1].partition("/")[2]
        path, _, query = target.partition("?")
        headers = {}
        for name, value in request.fields:
            if name in headers:
                value = headers[name] + ("; " if name == "cookie" else ", ") + value
            headers[name] = value
        context.http = http = HttpInfo(method=request.method, path=path, query=query, headers=headers, is_base64=False)
        http.body, http.raw_headers = body, request.fields
        try:
            value = self.handler(make_event(http), context)
            if hasattr(value, "__await__"):
                value = self.wait_for(value)
            answer = make_answer(value)
            if is_stream(answer.body):
                # To its first piece, so that an error before it still has an answer of its own.
                answer.body = Stream(self, answer.body)
                if not has_content_type(answer.fields):
                    answer.fields.append((b"content-type", (TEXT if answer.body.is_text else BINARY).encode("ascii")))
            return answer
        except SystemExit:
            raise
        except BaseException as e:
            return handler_error(e, request.request_id)

    def leave_if_forked(self):
        """Ends a process that the handler forked and that came back from it: it has the connection, too, and a second
        answer would be taken for that to the next request."""
        if os.getpid() == self.pid:
            return
        log("fanfare: a process that the handler forked returned from it and is ended; only its parent answers\n")
        flush_and_exit(1)

    def rehearse(self):
        """Goes through a request without the handler: the first one would copy each page of memory that it touches."""
        handler, self.handler = self.handler, lambda event, context: event
        answer = self.call(Request(b"POST / HTTP/1.1\r\nhost: rehearsal\r\ncontent-length: 8"), b'{"a": 1}')
        self.handler = handler
        assert answer.status == 200, answer.body

    def wait_for(self, awaitable):
        if self.loop is None:
            import asyncio

            # One for all requests, so that what a handler keeps (a client's pool) stays usable.
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(awaitable)

    def send(self, connection, answer, head, minor, keep):
        """Writes an answer; says whether the connection can go on."""
        streamed = isinstance(answer.body, Stream)
        bodiless = answer.status in (204, 304)
        keep = keep and not (streamed and minor == 0)
        lines = [b"HTTP/1.1 %d %s" % (answer.status, REASONS.get(answer.status, b""))]
        lines += [name + b": " + value for name, value in answer.fields]
        if streamed and minor == 1 and not bodiless:
            lines.append(b"transfer-encoding: chunked")
        elif not streamed and not bodiless:
            lines.append(b"content-length: %d" % len(answer.body))
        if not keep:
            lines.append(b"connection: close")
        elif minor == 0:
            lines.append(b"connection: keep-alive")
        lines.append(b"\r\n")
        data = b"\r\n".join(lines)
        if streamed:
            return self.send_stream(connection, answer.body, data, minor, silent=head or bodiless) and keep
        if not head and not bodiless:
            data += answer.body
        connection.send(data)
        return keep

    def send_stream(self, connection, stream, data, minor, silent):
        try:
            if silent:
                connection.send(data)
                return True
            piece = stream.first
            while piece is not None:
                framed = b"%x\r\n%s\r\n" % (len(piece), piece) if minor == 1 else piece
                connection.send(data + framed)
                data, piece = b"", stream.next_piece()
                self.leave_if_forked()
            connection.send(data + b"0\r\n\r\n" if minor == 1 else data)
            return True
        except (SystemExit, Closed):
            raise
        except BaseException as e:
            # The status is sent: all that can be said is that the answer is not whole.
            log(format_trace(e))
            self.leave_if_forked()
            return False
        finally:
            stream.close()
            end_lines()

    def finish(self):
        """What is due before the process ends in peace."""
        if self.loop is not None:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())


class Stream:
    """A body that is made while it is sent."""

    __slots__ = ("server", "source", "first", "is_text")

    def __init__(self, server, source):
        self.server, self.source, self.is_text = server, source, False
        self.first = self.next_piece()

    def next_piece(self):
        """The next piece that is not empty; None at the end."""
        while True:
            try:
                if hasattr(self.source, "__anext__"):
                    piece = self.server.wait_for(self.source.__anext__())
                else:
                    piece = next(self.source)
            except (StopIteration, StopAsyncIteration):
                return None
            self.is_text = isinstance(piece, str)
            piece = piece_bytes(piece)
            if piece:
                return piece

    def close(self):
        try:
            if hasattr(self.source, "aclose"):
                self.server.wait_for(self.source.aclose())
            elif hasattr(self.source, "close"):
                self.source.close()
        except SystemExit:
            raise
        except BaseException as e:
            log(format_trace(e))


# --- waiting ----------------------------------------------------------------------------------------------------


class Wakeup:
    """Makes signals end a poll: without it one that arrives just before the poll would be noticed only after it."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, False)
        self.arm()

    def arm(self):
        """Again before each wait, for user code may have taken the slot."""
        _signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)

    def drain(self):
        try:
            while os.read(self.reader, 512):
                pass
        except BlockingIOError:
            pass

    def close(self):
        _signal.set_wakeup_fd(-1)
        os.close(self.reader)
        os.close(self.writer)


class Waiter:
    """Polls a listener, connections without a whole request, and whatever else is registered."""

    def __init__(self, listener):
        self.listener, self.listener_fd = listener, listener.fileno()
        listener.settimeout(0)
        self.connections = {}
        self.accepting = False
        self.poll = select.poll()
        self.wakeup = Wakeup()
        self.poll.register(self.wakeup.reader, select.POLLIN)
        self.accept_again()

    def accept_again(self):
        if not self.accepting and len(self.connections) < CONNECTIONS_MAX:
            self.poll.register(self.listener_fd, select.POLLIN)
            self.accepting = True

    def wait(self):
        """Ready descriptors other than the listener and connections, and connections that have a whole request."""
        self.wakeup.arm()
        others, requests = [], []
        for fd, _ in self.poll.poll():
            if fd == self.listener_fd:
                self.accept()
            elif fd == self.wakeup.reader:
                self.wakeup.drain()
            elif fd in self.connections:
                connection = self.connections[fd]
                if not connection.fill_idle():
                    self.close(connection)
                elif connection.has_request():
                    requests.append(connection)
            else:
                others.append(fd)
        return others, requests

    def accept(self):
        try:
            fd, _ = self.listener._accept()
        except OSError as e:
            if e.errno in (errno.EMFILE, errno.ENFILE) and self.connections:
                self.stop_accepting()
            elif e.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR):
                raise
            return
        sock = _socket.socket(self.listener.family, self.listener.type, 0, fd)
        if self.listener.family != _socket.AF_UNIX:
            sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        self.connections[fd] = Connection(sock)
        self.poll.register(fd, select.POLLIN)
        if len(self.connections) >= CONNECTIONS_MAX:
            self.stop_accepting()

    def stop_accepting(self):
        self.poll.unregister(self.listener_fd)
        self.accepting = False

    def hold(self, connection):
        self.poll.unregister(connection.sock.fileno())

    def release(self, connection):
        self.poll.register(connection.sock.fileno(), select.POLLIN)

    def close(self, connection, held=False):
        fd = connection.sock.fileno()
        if not held:
            self.poll.unregister(fd)
        del self.connections[fd]
        connection.sock.close()
        self.accept_again()


# --- one handler process ----------------------------------------------------------------------------------------


def announce(gate):
    """The last thing before the first accept."""
    try:
        gate.sendall(b'{"type":"ready"}')
    except OSError:
        os._exit(0)  # the runtime is gone, and with it everyone who could send a request
    gate.close()
    # While the news travels rather than in the first request.
    import json  # noqa: F401


def exit_at_once(_signum, _frame):
    """SIGTERM before there is anything to finish. A pid 1 would ignore the signal without a handler."""
    os._exit(0)


def catch_sigterm(handler):
    """Installs a SIGTERM handler; gives the user's own, which is run at the end."""
    previous = _signal.signal(_signal.SIGTERM, handler)
    return previous if callable(previous) and previous is not exit_at_once else None


def serve_alone(server, listener, gate, users_sigterm):
    waiter = Waiter(listener)

    def stop(_signum, _frame):
        server.stopping = True

    _signal.signal(_signal.SIGTERM, stop)
    announce(gate)
    while not server.stopping:
        _, requests = waiter.wait()
        for connection in requests:
            if not server.stopping and not server.serve(connection):
                waiter.close(connection)
    listener.close()
    end_in_peace(server, users_sigterm)


def end_in_peace(server, users_sigterm):
    if users_sigterm is not None:
        users_sigterm(_signal.SIGTERM, None)
    server.finish()
    sys.exit(0)


# --- several handler processes ----------------------------------------------------------------------------------


class Worker:
    """A handler process as its leader sees it."""

    __slots__ = ("pid", "sock", "connection")

    def __init__(self, pid, sock):
        self.pid, self.sock, self.connection = pid, sock, None


def serve_together(server, listener, gate, users_sigterm, count):
    """Forks handler processes and hands each request to one that is free."""
    workers = {}
    for _ in range(count):
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            for sock in (ours, listener, gate, *(w.sock for w in workers.values())):
                sock.close()
            return work(server, theirs, users_sigterm)
        theirs.close()
        workers[ours.fileno()] = Worker(pid, ours)
    for worker in workers.values():
        word = worker.sock.recv(PACKET_BYTES_MAX)
        if not word:
            end_like(workers, worker.pid)
        if word != b"r":
            gate.sendall(word)  # why it failed, in the gate's own form
            kill(workers)
            os._exit(1)
    Leader(server, Waiter(listener), workers).lead(gate)


def work(server, sock, users_sigterm):
    """A handler process: requests come with their connection, one at a time."""
    server.pid = os.getpid()
    reseed()
    if server.handler is None:
        # Loaded here and not in the leader, for the module may start threads, which a fork does not copy.
        try:
            server.handler = load(server.settings)
        except Failure as e:
            say_failed(sock, e)
            flush_and_exit(1)
        users_sigterm = catch_sigterm(exit_at_once)
    # Not SIG_IGN, which programs started by the handler would inherit: the leader says when it is over.
    _signal.signal(_signal.SIGTERM, lambda _signum, _frame: None)
    # Never closed: for the leader its end must be the end of this process, not of a Python object on the way there.
    os.dup(sock.fileno())
    sock.sendall(b"r")
    while True:
        try:
            packet, fds = receive_packet(sock, 1)
        except ConnectionError:
            packet, fds = b"", []
        if not fds:
            end_in_peace(server, users_sigterm)
        connection = Connection(_socket.socket(fileno=fds[0]), packet)
        keep = server.serve(connection)
        leftover = bytes(connection.buffer)
        connection.sock.close()
        sock.sendall(b"k" + leftover if keep else b"c")


class Leader:
    """Owns the connections of a sandbox with several handler processes."""

    def __init__(self, server, waiter, workers):
        self.server, self.waiter, self.workers = server, waiter, workers
        self.free = list(workers.values())
        # Connections with a whole request, longest waiting first; at most CONNECTIONS_MAX.
        self.waiting = []
        for fd in workers:
            waiter.poll.register(fd, select.POLLIN)

    def lead(self, gate):
        def stop(_signum, _frame):
            self.server.stopping = True

        _signal.signal(_signal.SIGTERM, stop)
        announce(gate)
        while not self.server.stopping:
            others, requests = self.waiter.wait()
            for fd in others:
                self.returned(self.workers[fd])
            for connection in requests:
                self.waiter.hold(connection)
                self.waiting.append(connection)
            while self.free and self.waiting:
                self.hand_over(self.waiting.pop(0), self.free.pop())
        self.finish()

    def hand_over(self, connection, worker):
        fd = connection.sock.fileno().to_bytes(4, sys.byteorder)
        packet = bytes(connection.buffer)
        connection.buffer.clear()
        try:
            worker.sock.sendmsg([packet], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd)])
        except ConnectionError:
            end_like(self.workers, worker.pid)
        worker.connection = connection

    def returned(self, worker):
        try:
            packet = worker.sock.recv(PACKET_BYTES_MAX)
        except ConnectionError:
            packet = b""
        if not packet:
            end_like(self.workers, worker.pid)
        connection, worker.connection = worker.connection, None
        self.free.append(worker)
        if packet[:1] == b"k":
            connection.buffer += packet[1:]
            self.waiter.release(connection)
        else:
            self.waiter.close(connection, held=True)

    def finish(self):
        """Lets every handler process finish its request, then end."""
        self.waiter.listener.close()
        # Those with a request in hand stay open in the process that works on it, until it has answered.
        for connection in self.waiter.connections.values():
            connection.sock.close()
        for worker in self.workers.values():
            # Its answer is on the connection before this end of file is read.
            worker.sock.shutdown(_socket.SHUT_WR)
        for worker in self.workers.values():
            os.waitpid(worker.pid, 0)
        os._exit(0)


def kill(workers):
    for worker in workers.values():
        os.kill(worker.pid, _signal.SIGKILL)


def end_like(workers, pid):
    """Ends the sandbox the way one of its handler processes ended."""
    # That one, too: should it only have closed its socket, it would be waited for in vain.
    kill(workers)
    _, status = os.waitpid(pid, 0)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


# --- zygote -----------------------------------------------------------------------------------------------------


def reseed():
    """What copies of a process must not have in common."""
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None


def open_descriptors():
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        names = range(1024)
    # Asked again one by one: the listing had a descriptor of its own, whose number is free now.
    return {int(name) for name in names if is_open(int(name))}


def is_open(fd):
    try:
        os.fstat(fd)
        return True
    except OSError:
        return False


def shared_state(before):
    """Why a copy of this process would not work: (word, sentence), or None."""
    import _thread

    try:
        threads = len(os.listdir("/proc/self/task")) - 1
    except OSError:
        threads = _thread._count()
    if threads > 0:
        return "threads", "importing the handler left %d thread(s) running, which a fork does not copy" % threads
    try:
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return "processes", "importing the handler left a child process running"
    except ChildProcessError:
        pass
    S_IFMT, S_IFSOCK = 0o170000, 0o140000
    for fd in sorted(open_descriptors() - before):
        is_socket = os.fstat(fd).st_mode & S_IFMT == S_IFSOCK
        try:
            kind = os.readlink("/proc/self/fd/%d" % fd)
        except OSError:
            kind = ""
        if is_socket or kind == "anon_inode:[eventpoll]":
            what = "a socket" if is_socket else "an epoll instance"
            return "sockets", "importing the handler left %s open, which all copies would share" % what
    places = os.environ.get("FANFARE_PRIVATE_DIRS", "").split()
    return left_files(places) or (places and cannot_separate()) or None


def cannot_separate():
    """Whether a copy would be refused namespaces of its own, as a security module may do."""
    pid = os.fork()
    if pid == 0:
        try:
            libc_call("unshare", CLONE_NEWNS | CLONE_NEWIPC)
        except BaseException:
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1] == 0:
        return None
    return "namespaces", "this node allows the template's children no namespaces of their own"


def left_files(places):
    """Whether there is more in the temporary directories than is worth being copied at each start."""
    files = size = 0
    for place in places:
        for directory, _, names in os.walk(place):
            files += 1 + len(names)
            size += sum(os.lstat(os.path.join(directory, name)).st_size for name in names)
            if files > LEFT_FILES_MAX or size > LEFT_BYTES_MAX:
                return "files", "importing the handler left more than %d MiB or %d files in %s" % (
                    LEFT_BYTES_MAX >> 20,
                    LEFT_FILES_MAX,
                    place,
                )
    return None


class Zygote:
    """Imports once, then forks a sandbox per request."""

    def __init__(self, control):
        self.control = control
        self.pid = os.getpid()
        self.children = {}
        self.stopping = False

    def prepare(self):
        """Loads the handler; gives it with its settings. Ends the process when sandboxes cannot be forked from it."""
        import gc
        import json  # noqa: F401
        import traceback  # noqa: F401

        try:
            libc_call("getpid")  # once instead of in each sandbox
        except ImportError:
            pass
        for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB", "BLIS", "RAYON"):
            os.environ.setdefault(name + "_NUM_THREADS", "1")
        to_json({})
        before = open_descriptors()
        begun = time.monotonic()
        try:
            settings = Settings(os.environ)
            handler = load(settings)
        except Failure as e:
            say_failed(self.control, e)
            os._exit(1)
        unsafe = shared_state(before)
        if unsafe:
            say(self.control, type="unsafe", why=unsafe[0], detail=unsafe[1])
            flush_and_exit(0)
        gc.collect()
        gc.freeze()
        say(self.control, type="imported", import_us=int((time.monotonic() - begun) * 1e6))
        return settings, handler

    def run(self):
        """Serves the runtime; returns only in a forked child, with what it serves on."""
        wakeup = Wakeup()
        users_sigterm = catch_sigterm(self.stop)
        _signal.signal(_signal.SIGCHLD, lambda _signum, _frame: None)
        poll = select.poll()
        poll.register(self.control.fileno(), select.POLLIN)
        poll.register(wakeup.reader, select.POLLIN)
        while not self.stopping:
            ready = [fd for fd, _ in poll.poll()]
            if wakeup.reader in ready:
                wakeup.drain()
                self.reap()
            if self.control.fileno() in ready:
                child = self.command()
                if child is not None:
                    wakeup.close()
                    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
                    self.control.close()
                    return (*child, users_sigterm)
        flush_and_exit(0)

    def stop(self, _signum, _frame):
        if os.getpid() != self.pid:
            os._exit(0)  # a child that has not yet got its own handler
        self.stopping = True

    def command(self):
        try:
            packet, fds = receive_packet(self.control, 8)
        except ConnectionError:
            packet, fds = b"", []
        if not packet:
            self.stopping = True
            return None
        message = parse_packet(packet)
        if message.get("type") != "fork" or type(message.get("id")) is not int:
            protocol_error("%.60r where fork with an id was expected" % message.get("type"))
        return self.fork(message, fds)

    def fork(self, message, fds):
        processes = message.get("processes", 1)
        detail = None
        if len(fds) != 4:
            detail = "%d descriptors came with the request; 4 are needed" % len(fds)
        elif not is_env(message.get("env", {})):
            detail = "env must be an object of texts"
        elif type(processes) is not int or not 1 <= processes <= PROCESSES_MAX:
            detail = "processes must be a number from 1 to %d" % PROCESSES_MAX
        else:
            flush(sys.stdout)
            flush(sys.stderr)
            try:
                pid = os.fork()
            except OSError as e:
                detail = "fork: %s" % e
        if detail is None and pid == 0:
            return self.become(message, fds, processes)
        for fd in fds:
            os.close(fd)
        if detail is not None:
            say(self.control, type="fork-failed", id=message["id"], detail=detail)
            return None
        self.children[pid] = message["id"]
        say(self.control, type="forked", id=message["id"], pid=pid)
        return None

    def become(self, message, fds, processes):
        """The child's first steps."""
        listener, stdout, stderr, gate = fds
        os.setpgid(0, 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        for raw in LOGS:
            raw.unended = False  # of the template's own log
        os.close(stdout)
        os.close(stderr)
        return _socket.socket(fileno=listener), _socket.socket(fileno=gate), processes, message.get("env", {})

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            fork_id = self.children.pop(pid, None)
            if fork_id is None:
                continue  # an orphan of a sandbox that fell to pid 1
            if os.WIFSIGNALED(status):
                say(self.control, type="exited", id=fork_id, pid=pid, signal=os.WTERMSIG(status))
            else:
                say(self.control, type="exited", id=fork_id, pid=pid, code=os.WEXITSTATUS(status))


def flush_and_exit(status):
    """Ends without the handler's exit hooks, which belong to sandboxes."""
    flush(sys.stdout)
    flush(sys.stderr)
    os._exit(status)


# --- modes ------------------------------------------------------------------------------------------------------


def run_zygote():
    _signal.signal(_signal.SIGTERM, exit_at_once)
    zygote = Zygote(adopt(4))
    try:
        settings, handler = zygote.prepare()
        listener, gate, processes, env, users_sigterm = zygote.run()
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the runtime is gone
    server = Server(settings, handler)
    try:
        add_env(env)
        if not pass_gate(gate, server.rehearse):
            os._exit(0)
    except Failure as e:
        say_failed(gate, e)
        os._exit(1)
    reseed()
    serve(server, listener, gate, processes, users_sigterm)


def run_serve():
    _signal.signal(_signal.SIGTERM, exit_at_once)
    listener, gate = adopt(3), adopt(4)
    try:
        if not pass_gate(gate):
            os._exit(0)
        settings = Settings(os.environ)
        handler = load(settings) if settings.processes == 1 else None
    except Failure as e:
        say_failed(gate, e)
        flush_and_exit(1)
    users_sigterm = catch_sigterm(exit_at_once)
    serve(Server(settings, handler), listener, gate, settings.processes, users_sigterm)


def serve(server, listener, gate, processes, users_sigterm):
    if processes == 1:
        serve_alone(server, listener, gate, users_sigterm)
    else:
        serve_together(server, listener, gate, users_sigterm, processes)


def run_compile(out):
    import py_compile

    try:
        # Unchecked: the file stands alone, and its source may lie elsewhere.
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(__file__, cfile=out, doraise=True, invalidation_mode=mode)
    except (OSError, py_compile.PyCompileError) as e:
        sys.stderr.write("fanfare: cannot compile: %s\n" % e)
        sys.exit(1)


def main(arguments):
    know_of_line_ends()
    name_refused_forks()
    if arguments == ["zygote"]:
        run_zygote()
    elif arguments == ["serve"]:
        run_serve()
    elif len(arguments) == 2 and arguments[0] == "compile":
        run_compile(arguments[1])
    else:
        sys.stderr.write("usage: fanfare_shim.py zygote | serve | compile OUT.pyc\n")
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
