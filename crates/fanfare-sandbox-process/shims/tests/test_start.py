"""Starting without a zygote: what is found, what is not, and what the runtime is told."""

import os
import signal
import subprocess
import tempfile
import unittest

from harness import FUNCTIONS, SHIMS, Output, Peer, Sandbox, shim_command, shim_env, spawn

DEPENDENCIES = os.path.join(SHIMS, "tests", "dependencies")


class Start:
    language = suffix = None

    def serve(self, file, handler="handler", **more):
        return Sandbox.serve(self, self.language, file + self.suffix, handler, **more)

    def failed(self, sandbox, kind):
        message = sandbox.gate.receive()
        self.assertIsNotNone(message, sandbox.err.until(None))
        self.assertEqual((message["type"], message["kind"]), ("failed", kind), message)
        self.assertLessEqual(len(message["detail"]), 300)
        self.assertIsNone(sandbox.gate.receive(), "nothing follows")
        self.assertEqual(sandbox.wait(), 1)
        return message

    def test_what_is_missing(self):
        for file, handler, words in [
            ("no_such_file", "handler", ["no_such_file"]),
            ("contract", "no_such_handler", ["contract", "no_such_handler"]),
            ("contract", "handler.inner", ["handler.inner"]),
            ("contract", "not_callable", ["not_callable", "not a function"]),
        ]:
            with self.subTest(file=file, handler=handler):
                message = self.failed(self.serve(file, handler), "handler-not-found")
                for word in words:
                    self.assertIn(word, message["detail"])
        self.failed(self.serve("../functions"), "handler-not-found")

    def test_what_cannot_be_imported(self):
        for file, words in [("bad_syntax", "SyntaxError"), ("bad_import", "no.such.module")]:
            with self.subTest(file=file):
                sandbox = self.serve(file)
                message = self.failed(sandbox, "import-failed")
                self.assertRegex(message["detail"], words)
                self.assertIn(file, message["trace"])
                self.assertNotIn("fanfare_shim", message["trace"])
                self.assertRegex(sandbox.err.until(None), words)

    def test_settings_that_are_wrong(self):
        self.failed(self.serve("contract", FANFARE_BODY_BYTES_MAX="-5"), "internal")
        self.failed(self.serve("contract", FANFARE_CODE_DIR="/no/such/directory"), "internal")
        sandbox = Sandbox.serve(self, self.language, "")
        self.failed(sandbox, "internal")

    def test_dying_at_import_is_an_end_without_a_word(self):
        sandbox = self.serve("dies_at_import")
        self.assertIsNone(sandbox.gate.receive())
        self.assertEqual(sandbox.wait(), 9)

    def test_no_user_code_runs_before_go(self):
        sandbox = self.serve("dies_at_import", go=False)
        self.assertEqual(sandbox.gate.receive(), {"type": "hello"})
        self.assertEqual(sandbox.gate.pid, sandbox.pid, "the kernel says who it is")
        sandbox.gate.close()
        self.assertEqual(sandbox.wait(), 0, "it leaves in peace when the runtime does")

    def test_sigterm_while_it_waits(self):
        sandbox = self.serve("contract", go=False)
        self.assertEqual(sandbox.gate.receive(), {"type": "hello"})
        sandbox.terminate()
        self.assertEqual(sandbox.wait(), self.status_of_a_paused_one)

    def test_go_brings_environment(self):
        sandbox = self.serve("contract", go=False)
        sandbox.go(env={"FANFARE_SANDBOX_ID": "s77"})
        self.assertEqual(sandbox.ready().ask().json()["sandbox_id"], "s77")

    def test_words_that_are_not_the_protocols(self):
        for packet in (b"go", b"[]", b'{"type":"stop"}', b'{"type":"go","env":{"a":1}}', b'{"type":"go","env":5}'):
            with self.subTest(packet=packet):
                sandbox = self.serve("contract", go=False)
                sandbox.gate.receive()
                sandbox.gate.send(packet)
                self.assertEqual(sandbox.wait(), 70)
                self.assertTrue(sandbox.err.until(None).startswith("fanfare: "))

    def test_the_gate_is_closed_once_ready(self):
        sandbox = self.serve("contract").ready()
        self.assertIsNone(sandbox.gate.receive())

    def test_requests_written_early_are_answered(self):
        sandbox = self.serve("contract", go=False)
        with sandbox.connect() as client:
            client.request("GET", "/early")
            sandbox.go()
            self.assertEqual(client.answer().json()["path"], "/early")

    def test_dependencies(self):
        sandbox = self.serve("with_dependency", FANFARE_DEPS_DIR=DEPENDENCIES).ready()
        self.assertEqual(sandbox.ask().body, b"a dependency")
        self.failed(self.serve("with_dependency"), "import-failed")

    def test_usage(self):
        run = subprocess.run(shim_command(self.language), capture_output=True, text=True)
        self.assertEqual(run.returncode, 2)
        self.assertTrue(run.stderr.startswith("usage: "))


class PythonStart(Start, unittest.TestCase):
    language, suffix, status_of_a_paused_one = "python", ".py", 0

    def test_leaving_at_import(self):
        sandbox = self.serve("exits_at_import")
        self.assertEqual(self.failed(sandbox, "import-failed")["detail"], "SystemExit: 7")
        self.assertEqual(sandbox.out.until(None), "leaving\n")

    def test_names(self):
        for file, body in [
            ("package/inner.py", b'["package.inner","beside"]'),
            ("json.py", b"not the library"),
            ("odd-name.v2.py", b"_fanfare_handler"),
        ]:
            with self.subTest(file=file):
                sandbox = Sandbox.serve(self, "python", file).ready()
                self.assertEqual(sandbox.ask("POST", "/", [], b'{"a":1}').body, body)

    def test_what_sandboxes_see(self):
        seen = self.serve("counts_imports").ready().ask().json()
        self.assertEqual(seen["cwd"], FUNCTIONS)
        self.assertEqual(seen["argv"], ["counts_imports.py"])

    def test_compiled(self):
        with tempfile.TemporaryDirectory() as directory:
            out = os.path.join(directory, "shim.pyc")
            command = shim_command("python")
            subprocess.run([*command, "compile", out], check=True)
            listener = Sandbox(self)
            fds = {1: listener.out.writer, 2: listener.err.writer, 3: listener.listener.fileno(), 4: listener.gate.theirs.fileno()}
            listener.pid = spawn([*command[:-1], out, "serve"], shim_env("contract.py"), fds)
            listener.started()
            listener.go()
            self.assertEqual(listener.ready().ask().status, 200)
            run = subprocess.run([*command, "compile", directory], capture_output=True, text=True)
            self.assertEqual(run.returncode, 1)
            self.assertIn("cannot compile", run.stderr)


class NodeStart(Start, unittest.TestCase):
    language, suffix, status_of_a_paused_one = "node", ".cjs", -signal.SIGTERM

    def test_modules(self):
        for file, body in [("module.mjs", b"string"), ("default.mjs", b"by default")]:
            self.assertEqual(Sandbox.serve(self, "node", file).ready().ask().body, body)

    def test_filters_are_not_for_node(self):
        sandbox = self.serve("contract", go=False)
        sandbox.go(seccomp_filter="0" * 16)
        self.failed(sandbox, "internal")


if __name__ == "__main__":
    unittest.main()
