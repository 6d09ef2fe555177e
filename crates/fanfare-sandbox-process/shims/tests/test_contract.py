"""What a handler gets and what becomes of what it returns, in each language."""

import base64
import json
import unittest

from harness import Sandbox


class Contract:
    language = file = error_type = None
    limits = ()

    def sandbox(self, handler="handler", **env):
        return Sandbox.serve(self, self.language, self.file, handler, **env).ready()

    def do(self, sandbox, do, **event):
        return sandbox.ask("POST", "/", [("x-request-id", "r-1")], json.dumps({"do": do, **event}).encode())

    def test_events(self):
        sandbox = self.sandbox()
        cases = [
            (b"", {}, False),
            (b'{"a": [1, 2.5, null, true, "\xc3\xa9"]}', {"a": [1, 2.5, None, True, "é"]}, False),
            (b" [1] ", [1], False),
            (b'"text"', "text", False),
            (b"0", 0, False),
            (b"null", None, False),
            (b"not json", "not json", False),
            (b'{"a": 1', '{"a": 1', False),
            ("\ufeffbyte order".encode(), "\ufeffbyte order", False),
            (b"\xff\xfe\x00", base64.b64encode(b"\xff\xfe\x00").decode(), True),
            (b"[" * 200000, "[" * 200000, False),
        ]
        for body, event, is_base64 in cases:
            for content_type in ("text/plain", "application/json"):
                with self.subTest(body=body[:20], content_type=content_type):
                    answer = sandbox.ask("POST", "/", [("content-type", content_type)], body).json()
                    self.assertEqual(answer["event"], event)
                    self.assertEqual(answer["is_base64"], is_base64)
                    self.assertEqual(answer["body_bytes"], len(body))

    def test_context(self):
        headers = [("x-request-id", "r-7"), ("X-Two", "a"), ("x-two", "b"), ("cookie", "c=1"), ("cookie", "d=2")]
        answer = self.sandbox().ask("PUT", "/f/a%2Fb//c;d=1/%E2%82%AC/?x=1&x=2&y=%20+", headers).json()
        self.assertEqual(answer["method"], "PUT")
        self.assertEqual(answer["path"], "/f/a%2Fb//c;d=1/%E2%82%AC/")
        self.assertEqual(answer["query"], "x=1&x=2&y=%20+")
        self.assertEqual(answer["headers"]["x-two"], "a, b")
        self.assertEqual(answer["headers"]["cookie"], "c=1; d=2")
        self.assertEqual(answer["raw_headers"], [["host", "fn"]] + [[k.lower(), v] for k, v in headers])
        self.assertEqual(answer["request_id"], "r-7")
        self.assertEqual((answer["function_name"], answer["revision"], answer["sandbox_id"]), ("fn", "3", "s1"))
        self.assertEqual(answer["memory"], 128)

    def test_deadline(self):
        sandbox = self.sandbox()
        with_deadline = sandbox.ask(headers=[("x-fanfare-deadline-ms", "90000")]).json()
        self.assertTrue(60000 < with_deadline["remaining"] <= 90000, with_deadline["remaining"])
        self.assertTrue(with_deadline["has_deadline"])
        for nonsense in ([], [("x-fanfare-deadline-ms", "-1")], [("x-fanfare-deadline-ms", "9" * 30)]):
            answer = sandbox.ask(headers=nonsense).json()
            self.assertEqual((answer["remaining"], answer["has_deadline"]), (None, False))
        self.assertEqual(sandbox.ask(headers=[("x-fanfare-deadline-ms", "0")]).json()["remaining"], 0)

    def test_absolute_targets(self):
        sandbox = self.sandbox()
        for target, path, query in [
            ("http://fn/a/b?c", "/a/b", "c"),
            ("http://fn", "/", ""),
            ("*", "*", ""),
            ("/http://x/?q=http://y", "/http://x/", "q=http://y"),
        ]:
            answer = sandbox.ask("OPTIONS", target).json()
            self.assertEqual((answer["path"], answer["query"]), (path, query), target)

    def test_plain_values(self):
        sandbox = self.sandbox()
        for value, content_type, body in [
            ("text é", "text/plain; charset=utf-8", "text é".encode()),
            (None, "application/json", b"null"),
            ({"a": 1}, "application/json", b'{"a":1}'),
            ([1, "é"], "application/json", '[1,"é"]'.encode()),
            (True, "application/json", b"true"),
            (0, "application/json", b"0"),
            ("", "text/plain; charset=utf-8", b""),
        ]:
            with self.subTest(value=value):
                answer = self.do(sandbox, "return", value=value)
                self.assertEqual((answer.status, answer.header("content-type")), (200, content_type))
                self.assertEqual(answer.body, body)
                self.assertEqual(answer.header("content-length"), str(len(body)))

    def test_bytes(self):
        answer = self.do(self.sandbox(), "bytes", value=[0, 255, 13, 10])
        self.assertEqual((answer.status, answer.header("content-type")), (200, "application/octet-stream"))
        self.assertEqual(answer.body, b"\x00\xff\r\n")

    def test_full_answers(self):
        sandbox = self.sandbox()
        for given, status, fields, body in [
            ({"statusCode": 201, "body": "x"}, 201, {"content-type": "application/json"}, b"x"),
            ({"statusCode": "404"}, 404, {"content-type": "", "content-length": "0"}, b""),
            ({"statusCode": 200, "body": {"a": 1}}, 200, {"content-type": "application/json"}, b'{"a":1}'),
            ({"statusCode": 200, "body": "AP8=", "isBase64Encoded": True}, 200,
             {"content-type": "application/octet-stream"}, b"\x00\xff"),
            ({"statusCode": 200, "body": "x", "headers": {"Content-Type": "a/b", "X-N": 5}}, 200,
             {"content-type": "a/b", "x-n": "5"}, b"x"),
            ({"statusCode": 200, "multiValueHeaders": {"X-M": ["1", "2"]}}, 200, {"x-m": "1, 2"}, b""),
            ({"statusCode": 200, "cookies": ["a=1; Path=/", "b=2"]}, 200, {"set-cookie": "a=1; Path=/, b=2"}, b""),
            ({"statusCode": 200, "headers": {"X-U": "é"}}, 200, {"x-u": "Ã©"}, b""),
            ({"statusCode": 200, "headers": {"Content-Length": "99", "Transfer-Encoding": "chunked", "Connection": "close"},
              "body": "x"}, 200, {"content-length": "1", "transfer-encoding": ""}, b"x"),
            ({"statusCode": 204, "body": "dropped"}, 204, {"content-length": ""}, b""),
            ({"statusCode": 304}, 304, {"content-length": ""}, b""),
        ]:  # fmt: skip
            with self.subTest(given=given):
                answer = self.do(sandbox, "full", answer=given)
                self.assertEqual((answer.status, answer.body), (status, body))
                for name, value in fields.items():
                    self.assertEqual(answer.header(name), value, name)
                self.assertNotEqual(answer.header("connection"), "close")

    def test_answers_that_cannot_be_sent(self):
        sandbox = self.sandbox()
        for given in [
            {"statusCode": 99}, {"statusCode": 600}, {"statusCode": 101}, {"statusCode": "ok"}, {"statusCode": None},
            {"statusCode": 200.5},
            {"statusCode": 200, "headers": {"x": "a\r\nset-cookie: b"}},
            {"statusCode": 200, "headers": {"a b": "c"}},
            {"statusCode": 200, "headers": {"": "c"}},
            {"statusCode": 200, "headers": {"x": {"y": 1}}},
            {"statusCode": 200, "headers": {"x": None}},
            {"statusCode": 200, "multiValueHeaders": {"x": "not a list"}},
        ]:  # fmt: skip
            with self.subTest(given=given):
                answer = self.do(sandbox, "full", answer=given)
                self.assertEqual((answer.status, answer.header("x-fanfare-reason")), (502, "handler-error"))
                self.assertEqual(answer.header("set-cookie"), "")
        self.assertEqual(self.do(sandbox, "not_json").header("x-fanfare-reason"), "handler-error")

    def test_errors(self):
        sandbox = self.sandbox()
        with sandbox.connect() as client:
            client.request("POST", "/", [("x-request-id", "r-9")], b'{"do": "raise"}')
            answer = client.answer()
            self.assertEqual(answer.status, 502)
            self.assertEqual(answer.header("x-fanfare-reason"), "handler-error")
            self.assertEqual(answer.header("content-type"), "application/problem+json")
            problem = answer.json()
            self.assertEqual(
                {k: v for k, v in problem.items() if k not in ("stack", "hint")},
                {
                    "type": "urn:fanfare:reason:handler-error",
                    "reason": "handler-error",
                    "title": "The handler raised an error",
                    "status": 502,
                    "detail": self.error_type + ": the value is wrong",
                    "error_type": self.error_type,
                    "request_id": "r-9",
                },
            )
            self.assertRegex(problem["hint"], "`fanfare logs .+` has the rest")
            self.assertTrue(any("the value is wrong" in line for line in problem["stack"]))
            self.assertTrue(any(self.file in line for line in problem["stack"]))
            self.assertFalse(any("fanfare_shim" in line for line in problem["stack"]), problem["stack"])
            # The connection and the process go on.
            client.request()
            self.assertEqual(client.answer().status, 200)
        sandbox.err.until("the value is wrong")

    def test_errors_of_limits_have_reasons_of_their_own(self):
        sandbox = self.sandbox()
        for what, reason, hint in [
            ("fill", "no-space", "--tmp SIZE"),
            ("not_ready", "handler-error", "has the rest"),
            *self.limits,
        ]:
            with self.subTest(what=what):
                answer = self.do(sandbox, what)
                self.assertEqual((answer.status, answer.header("x-fanfare-reason")), (502, reason))
                self.assertEqual(answer.json()["type"], "urn:fanfare:reason:" + reason)
                self.assertIn(hint, answer.json()["hint"])

    def test_streams(self):
        sandbox = self.sandbox()
        answer = self.do(sandbox, "stream", value=["one", "", "two", "é"])
        self.assertEqual((answer.status, answer.header("content-type")), (200, "text/plain; charset=utf-8"))
        self.assertEqual(answer.chunks, [b"one", b"two", "é".encode()])
        answer = self.do(sandbox, "stream_bytes", value=[[0, 1], [255]])
        self.assertEqual((answer.header("content-type"), answer.body), ("application/octet-stream", b"\x00\x01\xff"))
        answer = self.do(sandbox, "stream_with_status")
        self.assertEqual((answer.status, answer.header("content-type")), (201, "text/event-stream"))
        self.assertEqual(answer.chunks, [b"data: 1\n\n"])
        self.assertEqual(self.do(sandbox, "stream", value=[]).chunks, [])

    def test_an_error_before_the_first_piece(self):
        sandbox = self.sandbox()
        answer = self.do(sandbox, "stream_error", after=0)
        self.assertEqual((answer.status, answer.header("x-fanfare-reason")), (502, "handler-error"))

    def test_a_broken_stream_is_cut(self):
        sandbox = self.sandbox()
        for event in ({"do": "stream_error", "after": 2}, {"do": "stream", "value": ["piece 0", "piece 1", 5]}):
            with sandbox.connect() as client:
                client.request("POST", "/", [], json.dumps(event).encode())
                status, _ = client.head()
                self.assertEqual((status, client.chunk(), client.chunk()), (200, b"piece 0", b"piece 1"))
                self.assertTrue(client.at_end(), "the stream has an end that it must not have")
        self.assertEqual(sandbox.ask().status, 200)
        sandbox.err.until("in the stream")

    def test_a_stream_whose_reader_left_is_closed(self):
        sandbox = self.sandbox()
        with sandbox.connect() as client:
            client.request("POST", "/", [], b'{"do": "stream_slowly"}')
            client.head()
            self.assertEqual(client.chunk(), b"0\n")
        sandbox.out.until("stream closed")
        self.assertEqual(sandbox.ask().status, 200)

    def test_async(self):
        sandbox = self.sandbox("async_handler")
        self.assertEqual(sandbox.ask().json(), {"async": True})
        answer = self.do(sandbox, "raise")
        self.assertEqual((answer.status, answer.json()["error_type"]), (502, self.error_type))
        sandbox = self.sandbox("async_stream")
        self.assertEqual(sandbox.ask().chunks, [b"piece 0", b"piece 1", b"piece 2"])

    def test_output(self):
        sandbox = self.sandbox()
        self.assertEqual(self.do(sandbox, "print").body, b"printed")
        # Before the process ends, and the unfinished line, too, which ends with its request.
        self.assertTrue(sandbox.out.until("no newline\n").startswith("to stdout\n"))
        self.assertIn("INFO to the log\n", sandbox.err.until("to the log"))
        self.assertIn("to stderr\n", sandbox.err.text)


    def test_a_line_ends_with_its_request(self):
        sandbox = self.sandbox()
        for text in ("one", "two", "three\n", "", "four"):
            self.assertEqual(self.do(sandbox, "write", text=text).body, b"written")
        self.assertEqual(sandbox.out.until("four\n"), "one\ntwo\nthree\nfour\n")
        self.assertEqual(sandbox.err.until("four\n"), "one\ntwo\nthree\nfour\n")

    def test_a_line_ends_with_a_stream(self):
        sandbox = self.sandbox()
        for _ in range(2):
            self.assertEqual(self.do(sandbox, "write_in_stream").body, b"pieces")
        self.assertEqual(sandbox.out.until("2\nstream 1, 2\n"), "stream 1, 2\nstream 1, 2\n")


class PythonContract(Contract, unittest.TestCase):
    language, file, error_type = "python", "contract.py", "ValueError"

    def test_an_interrupt_is_an_error_of_the_handler(self):
        sandbox = self.sandbox()
        for _ in range(2):
            answer = self.do(sandbox, "interrupt")
            self.assertEqual((answer.status, answer.header("x-fanfare-reason")), (502, "handler-error"))
            self.assertEqual(answer.json()["detail"], "KeyboardInterrupt: as if at a terminal")

    def test_http_by_item_and_by_attribute(self):
        answer = self.sandbox().ask("POST", "/a?b=c", [("x-one", "1")], b'{"do": "http_items"}').json()
        self.assertEqual(answer["same"], [True] * 7)
        self.assertEqual(answer["body"], '{"do": "http_items"}')
        self.assertIn(["x-one", "1"], answer["raw_headers"])
        self.assertEqual(answer["listed"], ["method", "path", "query", "headers", "is_base64"])
        self.assertEqual(answer["none"], [None, 7, False, "KeyError", "AttributeError"])
        self.assertEqual(answer["copied"], '{"do": "http_items"}')

    def test_http_is_json(self):
        http = self.sandbox().ask("POST", "/a?b=c", [("x-one", "1")], b'{"do": "http"}').json()
        self.assertEqual((http["method"], http["path"], http["query"]), ("POST", "/a", "b=c"))
        self.assertEqual((http["headers"]["x-one"], http["is_base64"]), ("1", False))

    def test_one_event_loop_for_all_requests(self):
        sandbox = self.sandbox("async_handler")
        self.assertEqual(self.do(sandbox, "loop").body, self.do(sandbox, "loop").body)

    def test_a_handler_may_take_the_outputs_away(self):
        for how in ("close", "none"):
            with self.subTest(how=how):
                sandbox = self.sandbox()
                self.assertEqual(self.do(sandbox, "take_outputs", how=how).body, b"taken")
                self.assertEqual(self.do(sandbox, "raise").header("x-fanfare-reason"), "handler-error")
                self.assertEqual(self.do(sandbox, "stream", value=["one"]).body, b"one")
                with sandbox.connect() as client:
                    client.request("POST", "/", [], b'{"do": "stream_error", "after": 1}')
                    client.head()
                    self.assertEqual(client.chunk(), b"piece 0")
                    self.assertTrue(client.at_end())
                self.assertEqual(sandbox.ask().status, 200)

    def test_a_stream_that_will_not_close_is_left(self):
        sandbox = self.sandbox()
        with sandbox.connect() as client:
            client.request("POST", "/", [], b'{"do": "stream_that_will_not_close"}')
            client.head()
            client.chunk()
        sandbox.out.until("it will not")
        self.assertEqual(sandbox.ask().status, 200)


class NodeContract(Contract, unittest.TestCase):
    language, file, error_type = "node", "contract.cjs", "RangeError"
    limits = [("spawn", "process-limit", "--pids N")]


if __name__ == "__main__":
    unittest.main()
