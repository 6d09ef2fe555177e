"""Starts shims as a runtime does, and talks to them."""

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import unittest

SHIMS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FUNCTIONS = os.path.join(SHIMS, "tests", "functions")
PYTHON = os.environ.get("FANFARE_TEST_PYTHON", sys.executable)
NODE = os.environ.get("FANFARE_TEST_NODE", "node")
# Nothing waits for time to pass; this is when an event that must come counts as lost.
EVENT_TIMEOUT_S = 30


# What this process was itself started with is not for its children.
for _fd in map(int, os.listdir("/proc/self/fd")):
    try:
        if _fd > 2:
            os.set_inheritable(_fd, False)
    except OSError:
        pass  # the listing's own descriptor


def which(program):
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        if os.access(os.path.join(directory, program), os.X_OK):
            return os.path.join(directory, program)
    return program if os.access(program, os.X_OK) else None


def shim_command(language):
    if language == "python":
        return [which(PYTHON) or PYTHON, "-s", "-B", os.path.join(SHIMS, "python", "fanfare_shim.py")]
    node = which(NODE)
    if node is None:
        raise unittest.SkipTest("SKIPPED: there is no node in PATH; the JavaScript shim is not tested")
    return [node, os.path.join(SHIMS, "node", "fanfare_shim.cjs")]


def high(fd):
    """A copy above the numbers that a shim expects."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)


def spawn(command, env, fds):
    """Starts a program with exactly these descriptors (number in the program: ours)."""
    copies = {number: high(fd) for number, fd in fds.items()}
    null = high(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    actions = [(os.POSIX_SPAWN_DUP2, null, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, copy, number) for number, copy in copies.items()]
    try:
        return os.posix_spawn(command[0], command, env, file_actions=actions)
    finally:
        for fd in (null, *copies.values()):
            os.close(fd)


def shim_env(file, handler="handler", **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FANFARE_", "PYTHON"))}
    for name in list(env):
        if name.endswith("_NUM_THREADS"):
            del env[name]
    env.update(
        FANFARE_HANDLER_FILE=file, FANFARE_HANDLER=handler, FANFARE_CODE_DIR=FUNCTIONS, FANFARE_FUNCTION_NAME="fn",
        FANFARE_REVISION="3", FANFARE_SANDBOX_ID="s1", FANFARE_MEMORY_LIMIT_MB="128",
    )  # fmt: skip
    env.update(more)
    return env


class Peer:
    """Our end of a control socket or a gate."""

    def __init__(self):
        self.sock, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.sock.settimeout(EVENT_TIMEOUT_S)
        self.pid = None

    def started(self):
        self.theirs.close()

    def receive(self):
        """The next message, or None at the end."""
        try:
            packet, ancillary, _, _ = self.sock.recvmsg(1 << 17, socket.CMSG_SPACE(12))
        except ConnectionResetError:
            return None
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and packet:
                self.pid = struct.unpack("3i", data)[0]
        return json.loads(packet) if packet else None

    def send(self, message, fds=()):
        packet = message if type(message) is bytes else json.dumps(message).encode()
        socket.send_fds(self.sock, [packet], list(fds))

    def close(self):
        self.sock.close()


class Output:
    """What a sandbox writes."""

    def __init__(self):
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        self.text = ""

    def started(self):
        os.close(self.writer)

    def until(self, wanted):
        """Reads until the text is there, or to the end."""
        end = time.monotonic() + EVENT_TIMEOUT_S
        while wanted is None or wanted not in self.text:
            if not select.select([self.reader], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError("%r was not written; there is %r" % (wanted, self.text))
            data = os.read(self.reader, 1 << 16)
            if not data:
                if wanted is None:
                    break
                raise AssertionError("%r was not written before the end; there is %r" % (wanted, self.text))
            self.text += data.decode()
        return self.text

    def close(self):
        os.close(self.reader)


class Sandbox:
    """A listening socket, a gate and outputs; served by a fresh process or by a zygote's child."""

    def __init__(self, case):
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, "s")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(64)
        self.gate, self.out, self.err = Peer(), Output(), Output()
        self.pid = None
        case.addCleanup(self.close)

    @classmethod
    def serve(cls, case, language, file, handler="handler", go=True, **env):
        """A fresh process."""
        self = cls(case)
        fds = {1: self.out.writer, 2: self.err.writer, 3: self.listener.fileno(), 4: self.gate.theirs.fileno()}
        self.pid = spawn([*shim_command(language), "serve"], shim_env(file, handler, **env), fds)
        self.started()
        if go:
            self.go()
        return self

    def started(self):
        for each in (self.gate, self.out, self.err):
            each.started()
        self.listener.close()

    def go(self, **fields):
        hello = self.gate.receive()
        assert hello == {"type": "hello"}, (hello, self.err.until(None))
        self.gate.send({"type": "go", **fields})

    def ready(self):
        message = self.gate.receive()
        assert message == {"type": "ready"}, (message, self.err.until(None))
        return self

    def connect(self):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(EVENT_TIMEOUT_S)
        sock.connect(self.path)
        return Client(sock)

    def ask(self, method="GET", target="/", headers=(), body=b""):
        """One request on a connection of its own."""
        with self.connect() as client:
            client.request(method, target, headers, body)
            return client.answer(method)

    def wait(self):
        """The exit status, as `os.waitstatus_to_exitcode` gives it."""
        pid, self.pid = self.pid, None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def terminate(self):
        os.kill(self.pid, signal.SIGTERM)

    def close(self):
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        for each in (self.gate, self.out, self.err):
            each.close()
        self.listener.close()
        self.directory.cleanup()


class Answer:
    def __init__(self, status, fields, body, chunks):
        self.status, self.fields, self.body, self.chunks = status, fields, body, chunks

    def header(self, name):
        return ", ".join(value for key, value in self.fields if key == name)

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return "%d %r %r" % (self.status, self.fields, self.body)


class Client:
    """An HTTP client so plain that it can also send what no client may."""

    def __init__(self, sock):
        self.sock, self.buffer = sock, b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def request(self, method="GET", target="/", headers=(), body=b""):
        lines = ["%s %s HTTP/1.1" % (method, target), "host: fn", *("%s: %s" % pair for pair in headers)]
        if body:
            lines.append("content-length: %d" % len(body))
        self.sock.sendall("\r\n".join((*lines, "", "")).encode("latin-1") + body)

    def send(self, data):
        self.sock.sendall(data)

    def fill(self):
        data = self.sock.recv(1 << 16)
        self.buffer += data
        return bool(data)

    def take_line(self):
        while b"\r\n" not in self.buffer:
            if not self.fill():
                raise EOFError("the end came before %r was a line" % self.buffer)
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        return line.decode("latin-1")

    def take(self, count):
        while len(self.buffer) < count:
            if not self.fill():
                raise EOFError("%d of %d bytes" % (len(self.buffer), count))
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def head(self):
        version, status, _ = (self.take_line() + " ").split(" ", 2)
        assert version == "HTTP/1.1", version
        fields = []
        while True:
            line = self.take_line()
            if not line:
                return int(status), fields
            name, _, value = line.partition(":")
            fields.append((name.lower(), value.strip()))

    def chunk(self):
        """One chunk; empty at the end."""
        size = int(self.take_line(), 16)
        data = self.take(size)
        assert self.take(2) == b"\r\n"
        return data

    def answer(self, method="GET"):
        status, fields = self.head()
        named = dict(fields)
        if method == "HEAD" or status in (204, 304) or 100 <= status < 200:
            return Answer(status, fields, b"", None)
        if "content-length" in named:
            return Answer(status, fields, self.take(int(named["content-length"])), None)
        if named.get("transfer-encoding") == "chunked":
            chunks = list(iter(self.chunk, b""))
            return Answer(status, fields, b"".join(chunks), chunks)
        while self.fill():
            pass
        body, self.buffer = self.buffer, b""
        return Answer(status, fields, body, None)

    def at_end(self):
        """Whether the other side has closed; waits for it."""
        try:
            return not self.buffer and not self.sock.recv(1)
        except ConnectionResetError:
            return True
