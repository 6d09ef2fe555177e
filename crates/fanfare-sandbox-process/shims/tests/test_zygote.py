"""Forking sandboxes from a process that has imported the handler."""

import os
import signal
import struct
import subprocess
import sys
import unittest

from harness import FUNCTIONS, Output, Peer, Sandbox, shim_command, shim_env, spawn

# struct sock_filter: code, jt, jf, k
ALLOW = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000).hex()


class Zygote:
    def __init__(self, case, file, handler="handler", **env):
        self.case, self.control, self.out, self.err = case, Peer(), Output(), Output()
        fds = {1: self.out.writer, 2: self.err.writer, 4: self.control.theirs.fileno()}
        self.pid = spawn([*shim_command("python"), "zygote"], shim_env(file, handler, **env), fds)
        for each in (self.control, self.out, self.err):
            each.started()
        case.addCleanup(self.close)
        self.forks = 0

    def imported(self):
        message = self.control.receive()
        assert message and message["type"] == "imported", (message, self.err.until(None))
        assert message["import_us"] > 0
        return self

    def fork(self, go=True, processes=1, **env):
        """A sandbox, ready unless it is to be left at its gate."""
        sandbox = Sandbox(self.case)
        self.forks += 1
        message = {"type": "fork", "id": self.forks, "processes": processes, "env": env}
        fds = [sandbox.listener.fileno(), sandbox.out.writer, sandbox.err.writer, sandbox.gate.theirs.fileno()]
        self.control.send(message, fds)
        sandbox.started()
        answer = self.control.receive()
        assert (answer["type"], answer["id"]) == ("forked", self.forks), answer
        sandbox.child = answer["pid"]
        if go:
            sandbox.go()
            sandbox.ready()
        return sandbox

    def exited(self):
        message = self.control.receive()
        assert message["type"] == "exited", message
        return message

    def wait(self):
        pid, self.pid = self.pid, None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self):
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        for each in (self.control, self.out, self.err):
            each.close()


class ZygoteTest(unittest.TestCase):
    def kill_later(self, sandbox):
        self.addCleanup(lambda: os.path.exists("/proc/%d" % sandbox.child) and os.kill(sandbox.child, signal.SIGKILL))

    def test_three_children_of_one_import(self):
        zygote = Zygote(self, "counts_imports.py").imported()
        sandboxes = [zygote.fork(FANFARE_SANDBOX_ID="s%d" % n, TMPDIR="/tmp/t%d" % n) for n in range(3)]
        seen = []
        for n, sandbox in enumerate(sandboxes):
            self.kill_later(sandbox)
            answer = sandbox.ask().json()
            seen.append(answer)
            self.assertEqual(answer["imported_by"], zygote.pid)
            self.assertEqual(answer["pid"], sandbox.child)
            self.assertEqual(sandbox.gate.pid, sandbox.child, "the credentials of hello")
            self.assertEqual(answer["group"], sandbox.child, "a process group of its own")
            self.assertEqual((answer["sandbox_id"], answer["tmp"]), ("s%d" % n, "/tmp/t%d" % n))
            self.assertEqual(answer["threads_var"], "1")
            self.assertEqual((answer["cwd"], answer["argv"]), (FUNCTIONS, ["counts_imports.py"]))
        self.assertEqual(len({answer["random"] for answer in seen}), 3, "random is reseeded")
        self.assertEqual(len({answer["pid"] for answer in seen}), 3)
        os.kill(zygote.pid, signal.SIGTERM)
        self.assertEqual(zygote.wait(), 0)
        self.assertEqual(zygote.out.until(None).count("imported in"), 1)

    def test_children_hold_nothing_of_others(self):
        zygote = Zygote(self, "counts_imports.py").imported()
        first, second = zygote.fork(), zygote.fork()
        self.kill_later(first)
        self.kill_later(second)
        first_fds, second_fds = (dict(s.ask().json()["fds"]) for s in (first, second))
        shared = {target for target in first_fds.values() if "socket:" in target or "pipe:" in target}
        shared &= set(second_fds.values())
        self.assertEqual(shared, set(), (first_fds, second_fds))
        # null, stdout, stderr, the listener, the connection, the wake-up pipe
        for fds in (first_fds, second_fds):
            sockets = [target for target in fds.values() if target.startswith("socket:")]
            self.assertEqual(len(sockets), 2, fds)
            self.assertLessEqual(len(fds), 7, fds)

    def test_gate_holds_until_go(self):
        zygote = Zygote(self, "counts_imports.py").imported()
        sandbox = zygote.fork(go=False)
        self.kill_later(sandbox)
        with sandbox.connect() as client:
            client.request()
            self.assertEqual(sandbox.gate.receive(), {"type": "hello"})
            client.sock.settimeout(0.05)
            self.assertRaises(TimeoutError, client.sock.recv, 1)
            client.sock.settimeout(30)
            sandbox.gate.send({"type": "go", "env": {"FANFARE_SANDBOX_ID": "late"}})
            sandbox.ready()
            self.assertEqual(client.answer().json()["sandbox_id"], "late")

    def test_a_pause_does_not_touch_the_handler(self):
        zygote = Zygote(self, "contract.py").imported()
        sandbox = zygote.fork(go=False)
        self.kill_later(sandbox)
        self.assertEqual(sandbox.gate.receive(), {"type": "hello"})
        sandbox.gate.send({"type": "go"})
        self.assertEqual(sandbox.ready().ask("POST", "/", [], b'{"do": "return", "value": 5}').body, b"5")
        self.assertEqual(sandbox.out.text + sandbox.err.text, "")

    def test_gate_closed_instead_of_go(self):
        zygote = Zygote(self, "counts_imports.py").imported()
        sandbox = zygote.fork(go=False)
        sandbox.gate.close()
        self.assertEqual(zygote.exited(), {"type": "exited", "id": 1, "pid": sandbox.child, "code": 0})

    def test_sigterm_at_the_gate(self):
        zygote = Zygote(self, "counts_imports.py").imported()
        sandbox = zygote.fork(go=False)
        self.assertEqual(sandbox.gate.receive(), {"type": "hello"})
        os.kill(sandbox.child, signal.SIGTERM)
        self.assertEqual(zygote.exited()["code"], 0)

    def test_ends_are_reported(self):
        zygote = Zygote(self, "contract.py").imported()
        for body, end in [
            (b'{"do": "exit", "status": 5}', {"code": 5}),
            (b'{"do": "exit_now", "status": 6}', {"code": 6}),
        ]:
            sandbox = zygote.fork()
            self.assertRaises(EOFError, sandbox.ask, "POST", "/", [], body)
            self.assertEqual(zygote.exited(), {"type": "exited", "id": zygote.forks, "pid": sandbox.child, **end})
        sandbox = zygote.fork()
        os.kill(sandbox.child, signal.SIGKILL)
        self.assertEqual(zygote.exited()["signal"], signal.SIGKILL)
        sandbox = zygote.fork()
        os.kill(sandbox.child, signal.SIGTERM)
        self.assertEqual(zygote.exited()["code"], 0)
        self.assertEqual(sandbox.out.until(None), "sigterm hook\natexit hook\n")

    def test_outputs_are_the_sandboxs(self):
        zygote = Zygote(self, "contract.py").imported()
        sandbox = zygote.fork()
        self.kill_later(sandbox)
        sandbox.ask("POST", "/", [], b'{"do": "print"}')
        sandbox.out.until("to stdout\n")
        sandbox.err.until("to stderr\n")
        zygote.control.close()
        self.assertEqual(zygote.wait(), 0, "it leaves when the runtime does")
        self.assertEqual(zygote.out.until(None) + zygote.err.until(None), "")
        self.assertEqual(sandbox.ask().status, 200, "its children stay")

    def test_unsafe_imports(self):
        for file, why in [
            ("starts_thread.py", "threads"),
            ("starts_process.py", "processes"),
            ("opens_socket.py", "sockets"),
            ("opens_epoll.py", "sockets"),
        ]:
            with self.subTest(file=file):
                zygote = Zygote(self, file)
                message = zygote.control.receive()
                self.assertEqual((message["type"], message["why"]), ("unsafe", why), message)
                self.assertEqual(zygote.wait(), 0)
                self.assertTrue(Sandbox.serve(self, "python", file).ready().ask().body.startswith(b"with a"))

    def test_failures(self):
        for file, handler, kind in [
            ("no_such_file.py", "handler", "handler-not-found"),
            ("contract.py", "no_such_handler", "handler-not-found"),
            ("contract.py", "not_callable", "handler-not-found"),
            ("bad_syntax.py", "handler", "import-failed"),
            ("bad_import.py", "handler", "import-failed"),
            ("exits_at_import.py", "handler", "import-failed"),
        ]:
            with self.subTest(file=file, handler=handler):
                zygote = Zygote(self, file, handler)
                message = zygote.control.receive()
                self.assertEqual((message["type"], message["kind"]), ("failed", kind), message)
                self.assertEqual(zygote.wait(), 1)
        zygote = Zygote(self, "dies_at_import.py")
        self.assertIsNone(zygote.control.receive())
        self.assertEqual(zygote.wait(), 9)

    def test_bad_forks(self):
        zygote = Zygote(self, "contract.py").imported()
        null = os.open(os.devnull, os.O_RDONLY)
        for message, count in [
            ({"type": "fork", "id": 1}, 0),
            ({"type": "fork", "id": 2}, 3),
            ({"type": "fork", "id": 3}, 5),
            ({"type": "fork", "id": 4, "processes": 0}, 4),
            ({"type": "fork", "id": 5, "processes": "2"}, 4),
            ({"type": "fork", "id": 6, "env": {"a": 1}}, 4),
        ]:
            zygote.control.send(message, [null] * count)
            answer = zygote.control.receive()
            self.assertEqual((answer["type"], answer["id"]), ("fork-failed", message["id"]), answer)
        os.close(null)
        self.assertEqual(len(os.listdir("/proc/%d/fd" % zygote.pid)), 6, "0, 1, 2, control, wake-up pipe")
        sandbox = zygote.fork()
        self.kill_later(sandbox)
        self.assertEqual(sandbox.ask().status, 200)

    def test_words_that_are_not_the_protocols(self):
        for packet in (b"fork", b"[]", b'{"type":"spoon"}', b'{"type":"fork"}', b'{"type":"fork","id":"1"}'):
            zygote = Zygote(self, "contract.py").imported()
            zygote.control.send(packet)
            self.assertEqual(zygote.wait(), 70)
            self.assertTrue(zygote.err.until(None).startswith("fanfare: "))

    def test_many_forks_leave_nothing_behind(self):
        zygote = Zygote(self, "contract.py").imported()
        sandboxes = [zygote.fork() for _ in range(20)]
        self.assertEqual(len(os.listdir("/proc/%d/fd" % zygote.pid)), 6)
        for sandbox in sandboxes:
            os.kill(sandbox.child, signal.SIGKILL)
        ended = {zygote.exited()["pid"] for _ in sandboxes}
        self.assertEqual(ended, {sandbox.child for sandbox in sandboxes})

    def test_seccomp_filter(self):
        zygote = Zygote(self, "counts_imports.py").imported()
        sandbox = zygote.fork(go=False)
        sandbox.go(seccomp_filter=ALLOW)
        message = sandbox.gate.receive()
        if message.get("kind") == "internal" and os.geteuid() != 0:
            self.skipTest("SKIPPED: no_new_privs is not set and this is not root: %s" % message["detail"])
        self.assertEqual(message, {"type": "ready"})
        self.kill_later(sandbox)
        self.assertEqual(sandbox.ask().json()["seccomp"], "2")
        plain = zygote.fork()
        self.kill_later(plain)
        self.assertEqual(plain.ask().json()["seccomp"], "0", "its siblings have none of it")

    def test_go_carries_files_to_join(self):
        zygote = Zygote(self, "counts_imports.py").imported()
        pipes = [os.pipe() for _ in range(3)]
        sandbox = zygote.fork(go=False)
        self.assertEqual(sandbox.gate.receive(), {"type": "hello"})
        sandbox.gate.send({"type": "go"}, [write for _, write in pipes])
        for read, write in pipes:
            os.close(write)
            # To the end: the sandbox has closed its copies.
            self.assertEqual(os.read(read, 10) + os.read(read, 10), b"0")
            os.close(read)
        sandbox.ready()
        self.kill_later(sandbox)
        read, write = os.pipe()
        refused = zygote.fork(go=False)
        self.assertEqual(refused.gate.receive(), {"type": "hello"})
        refused.gate.send(b'{"type":"go"}', [read])
        os.close(read)
        os.close(write)
        message = refused.gate.receive()
        self.assertEqual((message["type"], message["kind"]), ("failed", "internal"))

    def test_files_can_be_moved_whatever_the_landlock(self):
        code = """
import ctypes, os, sys, tempfile
sys.path.insert(0, sys.argv[1])
import fanfare_shim
version = int(sys.argv[2])
if ctypes.CDLL(None).syscall(444, None, 0, 1) < version:
    print("SKIPPED: this kernel's Landlock is older than version", version)
    sys.exit()
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
with tempfile.TemporaryDirectory() as top:
    a, b = os.path.join(top, "a"), os.path.join(top, "b")
    os.mkdir(a), os.mkdir(b)
    open(os.path.join(a, "x"), "w").close()
    fanfare_shim.confine(version)
    os.link(os.path.join(a, "x"), os.path.join(b, "y"))
    os.rename(os.path.join(a, "x"), os.path.join(b, "x"))
    os.symlink("x", os.path.join(b, "z"))
    print(sorted(os.listdir(b)), os.readlink(os.path.join(b, "z")))
"""
        for version in range(1, 8):
            with self.subTest(version=version):
                shim = os.path.dirname(shim_command("python")[-1])
                command = [sys.executable, "-B", "-c", code, shim, str(version)]
                ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
                if ended.stdout.startswith("SKIPPED"):
                    print(ended.stdout.strip(), file=sys.stderr)
                    continue
                self.assertEqual(ended.stdout, "['x', 'y', 'z'] x\n", ended.stderr)

    def test_what_each_landlock_restricts(self):
        sys.path.insert(0, os.path.dirname(shim_command("python")[-1]))
        from fanfare_shim import landlock_rules

        refer = 1 << 13
        self.assertIsNone(landlock_rules(0))
        self.assertIsNone(landlock_rules(1))
        for version in (2, 3, 4, 5):
            self.assertEqual(landlock_rules(version), (struct.pack("=Q", refer), refer))
        for version in (6, 7, 99):
            self.assertEqual(landlock_rules(version), (struct.pack("=QQQ", 0, 0, 3), 0))

    def test_seccomp_filters_that_cannot_be_installed(self):
        zygote = Zygote(self, "counts_imports.py").imported()
        for text in ("zz", "00", ALLOW + "00", "0" * 16, ALLOW * 4097):
            sandbox = zygote.fork(go=False)
            sandbox.go(seccomp_filter=text)
            message = sandbox.gate.receive()
            self.assertEqual((message["type"], message["kind"]), ("failed", "internal"), text[:20])
            self.assertEqual(zygote.exited()["code"], 1)

    def test_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("SKIPPED: this interpreter has no numpy; its reseeding and thread limits are not tested")
        installed = os.path.dirname(os.path.dirname(numpy.__file__))
        zygote = Zygote(self, "with_numpy.py", FANFARE_DEPS_DIR=installed).imported()
        seen = []
        for _ in range(3):
            sandbox = zygote.fork()
            self.kill_later(sandbox)
            seen.append(sandbox.ask().json())
        self.assertEqual(len({answer["numpy"] for answer in seen}), 3, "numpy.random is reseeded")
        self.assertEqual(len({answer["random"] for answer in seen}), 3)


if __name__ == "__main__":
    unittest.main()
