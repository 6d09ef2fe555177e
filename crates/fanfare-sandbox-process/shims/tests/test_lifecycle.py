"""Ends, and several handler processes in one sandbox."""

import json
import os
import signal
import tempfile
import unittest

from harness import Sandbox
from test_zygote import Zygote


class Lifecycle:
    language = file = None

    def sandbox(self, **env):
        return Sandbox.serve(self, self.language, self.file, **env).ready()

    def held(self, sandbox, client):
        """A request that is in hand until the returned file is there."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        file = os.path.join(directory.name, "go")
        client.request("POST", "/", [], json.dumps({"do": "wait", "file": file}).encode())
        before = len(sandbox.out.text)
        while "waiting" not in sandbox.out.text[before:]:
            sandbox.out.until(sandbox.out.text[:before] + "waiting\n")
        return lambda: open(file, "w").close()

    def test_sigterm_when_idle(self):
        sandbox = self.sandbox()
        with sandbox.connect() as idle:
            idle.request()
            idle.answer()
            sandbox.terminate()
            self.assertEqual(sandbox.wait(), 0)
            self.assertTrue(idle.at_end())
        self.assertEqual(sandbox.out.until(None), "sigterm hook\natexit hook\n")

    def test_sigterm_finishes_the_request_in_hand(self):
        sandbox = self.sandbox()
        with sandbox.connect() as client:
            release = self.held(sandbox, client)
            sandbox.terminate()
            if self.language == "node":
                # There a signal is an event like others, and comes in its turn.
                sandbox.out.until("sigterm hook")
            release()
            answer = client.answer()
            self.assertEqual((answer.status, answer.body), (200, b"waited"))
            self.assertEqual(answer.header("connection"), "close")
            self.assertTrue(client.at_end())
        self.assertEqual(sandbox.wait(), 0)
        self.assertTrue(sandbox.out.until(None).endswith("atexit hook\n"))

    def test_exits_in_a_handler(self):
        for do, status, hooks in [("exit", 0, True), ("exit", 3, True), ("exit_now", 4, self.language == "node")]:
            sandbox = self.sandbox()
            body = json.dumps({"do": do, "status": status}).encode()
            self.assertRaises(EOFError, sandbox.ask, "POST", "/", [], body)
            self.assertEqual(sandbox.wait(), status)
            self.assertEqual(sandbox.out.until(None), "atexit hook\n" if hooks else "")


class PythonLifecycle(Lifecycle, unittest.TestCase):
    language, file = "python", "contract.py"

    def test_one_process_serves_one_at_a_time(self):
        sandbox = self.sandbox()
        with sandbox.connect() as first, sandbox.connect() as second:
            release = self.held(sandbox, first)
            second.request()
            release()
            self.assertEqual(first.answer().body, b"waited")
            self.assertEqual(second.answer().status, 200)


    def test_a_forked_process_does_not_answer(self):
        several = Sandbox.serve(self, "python", self.file, FANFARE_HANDLER_PROCESSES="2").ready()
        for sandbox in (self.sandbox(), several):
            with sandbox.connect() as client:
                for how in ("returns", "raises", "streams", "breaks a stream"):
                    body = json.dumps({"do": "fork", "how": how}).encode()
                    client.request("POST", "/", [], body)
                    # The parent answers only after its child has ended.
                    self.assertEqual((how, client.answer().body), (how, b"parent, child ended with 1"))
                    sandbox.err.until("only its parent answers")
                    sandbox.err.text = ""
                    client.request("POST", "/", [], b'{"do": "return", "value": 7}')
                    self.assertEqual(client.answer().body, b"7")


class NodeLifecycle(Lifecycle, unittest.TestCase):
    language, file = "node", "contract.cjs"

    def test_an_unhandled_rejection_ends_it_with_its_message(self):
        sandbox = self.sandbox()
        self.assertRaises((EOFError, ConnectionResetError), sandbox.ask, "POST", "/", [], b'{"do": "reject"}')
        self.assertEqual(sandbox.wait(), 1)
        self.assertIn("nobody listens", sandbox.err.until(None))

    def test_requests_run_side_by_side(self):
        sandbox = self.sandbox()
        with sandbox.connect() as first, sandbox.connect() as second:
            release = self.held(sandbox, first)
            second.request()
            self.assertEqual(second.answer().status, 200)
            release()
            self.assertEqual(first.answer().body, b"waited")


class SeveralProcesses(unittest.TestCase):
    """FANFARE_HANDLER_PROCESSES of 3, from a zygote and afresh."""

    held = Lifecycle.held

    def fresh(self, file="contract.py"):
        return Sandbox.serve(self, "python", file, FANFARE_HANDLER_PROCESSES="3")

    def sandboxes(self):
        yield self.fresh().ready()
        self.zygote = Zygote(self, "contract.py").imported()
        sandbox = self.zygote.fork(processes=3)
        self.addCleanup(lambda: os.path.exists("/proc/%d" % sandbox.child) and os.killpg(sandbox.child, signal.SIGKILL))
        yield sandbox

    def test_as_many_requests_at_once_as_processes(self):
        for sandbox in self.sandboxes():
            clients = [sandbox.connect() for _ in range(8)]
            for client in clients:  # all connections are known, and idle
                client.request()
                client.answer()
            releases = [self.held(sandbox, client) for client in clients[3:6]]
            clients[0].request("POST", "/", [], b'{"do": "pid"}')  # a fourth one waits
            releases.pop(1)()
            self.assertEqual(clients[4].answer().body, b"waited")
            self.assertEqual(clients[0].answer().status, 200)
            # The freed process is all that is left, and it serves every other connection.
            pids = set()
            for client in (clients[1], clients[2], clients[6], clients[7], clients[4]):
                client.request("POST", "/", [], b'{"do": "pid"}')
                pids.add(client.answer().body)
            self.assertEqual(len(pids), 1)
            for release in releases:
                release()
            for client in (clients[3], clients[5]):
                self.assertEqual(client.answer().body, b"waited")
            for client in clients:
                client.sock.close()

    def test_pipelines_and_bodies(self):
        for sandbox in self.sandboxes():
            with sandbox.connect() as client:
                body = b"x" * 300000
                client.send(b"POST /0 HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                client.send(b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n")
                self.assertEqual(client.answer().json()["body_bytes"], len(body))
                self.assertEqual(client.answer().json()["path"], "/1")
                client.send(b"\r\n")
                self.assertEqual(client.answer().json()["path"], "/2")
                client.send(b"GET /3 HTTP/1.1\r\nconnection: close\r\n\r\n")
                self.assertEqual(client.answer().json()["path"], "/3")
                self.assertTrue(client.at_end())

    def test_sigterm_finishes_the_requests_in_hand(self):
        for sandbox in self.sandboxes():
            with sandbox.connect() as first, sandbox.connect() as second:
                releases = [self.held(sandbox, client) for client in (first, second)]
                os.kill(sandbox.pid or sandbox.child, signal.SIGTERM)
                for client, release in zip((first, second), releases):
                    release()
                    self.assertEqual(client.answer().body, b"waited")
                    self.assertTrue(client.at_end())
            if sandbox.pid:
                self.assertEqual(sandbox.wait(), 0)
            else:
                self.assertEqual(self.zygote.exited()["code"], 0)
            # In each handler process, and not in the leader.
            self.assertEqual(sandbox.out.until(None).count("atexit hook"), 3, sandbox.out.text + sandbox.err.until(None))

    def test_a_process_that_ends_takes_the_sandbox_with_it(self):
        for body, status in [(b'{"do": "exit_now", "status": 6}', 6), (b'{"do": "exit", "status": 7}', 7)]:
            for sandbox in self.sandboxes():
                with sandbox.connect() as other:
                    self.held(sandbox, other)
                    self.assertRaises(EOFError, sandbox.ask, "POST", "/", [], body)
                    self.assertTrue(other.at_end())
                end = sandbox.wait() if sandbox.pid else self.zygote.exited()["code"]
                self.assertEqual(end, status)
                # The end of the output is the end of every process.
                sandbox.out.until(None)

    def test_a_killed_process(self):
        sandbox = self.fresh().ready()
        pid = sandbox.ask("POST", "/", [], b'{"do": "pid"}').json()
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(sandbox.wait(), 128 + signal.SIGKILL)
        sandbox.out.until(None)

    def test_a_killed_leader(self):
        sandbox = self.fresh().ready()
        os.kill(sandbox.pid, signal.SIGKILL)
        self.assertEqual(sandbox.wait(), -signal.SIGKILL)
        self.assertEqual(sandbox.out.until(None).count("atexit hook"), 3, "the others leave in peace")

    def test_failures(self):
        for file, kind in [("no_such_file.py", "handler-not-found"), ("bad_import.py", "import-failed")]:
            sandbox = self.fresh(file)
            message = sandbox.gate.receive()
            self.assertEqual((message["type"], message["kind"]), ("failed", kind))
            self.assertIsNone(sandbox.gate.receive())
            self.assertEqual(sandbox.wait(), 1)
        sandbox = self.fresh("dies_at_import.py")
        self.assertIsNone(sandbox.gate.receive())
        self.assertEqual(sandbox.wait(), 9)

    def test_imports_that_start_threads(self):
        sandbox = self.fresh("starts_thread.py").ready()
        self.assertEqual(sandbox.ask().body, b"with a thread")


if __name__ == "__main__":
    unittest.main()
