"""The wire: what is read as a request, what is refused, and what becomes of the connection."""

import select
import socket
import unittest

from harness import Sandbox

class Http:
    language = file = None
    # Framing cases in which another parser may rightly answer otherwise.
    otherwise = {}

    def sandbox(self, **env):
        return Sandbox.serve(self, self.language, self.file, **env).ready()

    def test_framing(self):
        sandbox = self.sandbox()
        head = b"POST /p HTTP/1.1\r\nhost: fn\r\n"
        chunked = head + b"transfer-encoding: chunked\r\n\r\n"
        cases = [
            # name, bytes, expected body length or None for a refusal with this status
            ("no body", head + b"\r\n", 0),
            ("length", head + b"content-length: 3\r\n\r\nabc", 3),
            ("equal lengths", head + b"content-length: 3, 3\r\n\r\nabc", 3),
            ("leading zeros", head + b"content-length: 003\r\n\r\nabc", 3),
            ("chunks", chunked + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 5),
            ("upper-case size", chunked + b"A\r\n0123456789\r\n0\r\n\r\n", 10),
            ("chunk extension", chunked + b"3;a=b\r\nabc\r\n0\r\n\r\n", 3),
            ("trailers", chunked + b"1\r\na\r\n0\r\nx-t: 1\r\n\r\n", 1),
            ("coding in capitals", head + b"Transfer-Encoding: Chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 1),
            ("empty line first", b"\r\n" + head + b"\r\n", 0),
            ("no host", b"GET / HTTP/1.1\r\n\r\n", 0),
            ("spaces around a value", head + b"content-length: \t 1 \t\r\n\r\na", 1),
            ("garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
            ("no version", b"GET /\r\n\r\n", 400),
            ("four words", b"GET / x HTTP/1.1\r\n\r\n", 400),
            ("version 2", b"GET / HTTP/2.0\r\n\r\n", 505),
            ("version nonsense", b"GET / HTTX/1.1\r\n\r\n", 400),
            ("method nonsense", b"G(T / HTTP/1.1\r\n\r\n", 400),
            ("control in target", b"GET /\x01 HTTP/1.1\r\n\r\n", 400),
            ("lone LF", b"GET / HTTP/1.1\nhost: fn\n\r\n\r\n", 400),
            ("lone LF in a field", head + b"a: b\nc: d\r\n\r\n", 400),
            ("lone CR in a field", head + b"a: b\rc: d\r\n\r\n", 400),
            ("NUL in a field", head + b"a: b\0\r\n\r\n", 400),
            ("space before colon", head + b"content-length : 3\r\n\r\nabc", 400),
            ("folded field", head + b"a: b\r\n c\r\n\r\n", 400),
            ("field without colon", head + b"a\r\n\r\n", 400),
            ("field without name", head + b": b\r\n\r\n", 400),
            ("length and coding", head + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
            ("coding and length", head + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n", 400),
            ("two lengths", head + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 400),
            ("length with sign", head + b"content-length: +3\r\n\r\nabc", 400),
            ("length in hex", head + b"content-length: 0x3\r\n\r\nabc", 400),
            ("length empty", head + b"content-length: \r\n\r\n", 400),
            ("length huge", head + b"content-length: 99999999999999999999\r\n\r\n", 400),
            ("other coding", head + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
            ("coding twice", head + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 501),
            ("coding in 1.0", b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
            ("size not hex", chunked + b"x\r\n", 400),
            ("size negative", chunked + b"-1\r\n", 400),
            ("size prefixed", chunked + b"0x1\r\na\r\n0\r\n\r\n", 400),
            ("size empty", chunked + b"\r\nabc\r\n", 400),
            ("size huge", chunked + b"fffffffffffffffff\r\n", 400),
            ("chunk too long", chunked + b"3\r\nabcd\r\n0\r\n\r\n", 400),
            ("head too large", head + b"a: " + b"x" * 70000 + b"\r\n\r\n", 431),
            ("head without end", head + b"a: " + b"x" * 140000, 431),
            ("fields too many", head + b"".join(b"a%d: b\r\n" % n for n in range(300)) + b"\r\n", 431),
        ]
        for name, data, expected in cases:
            expected = self.otherwise.get(name, expected)
            with self.subTest(name=name), sandbox.connect() as client:
                try:
                    client.send(data)
                except BrokenPipeError:
                    pass  # refused before it was all said
                answer = client.answer()
                if expected < 400:
                    self.assertEqual((answer.status, answer.json().get("body_bytes")), (200, expected))
                    client.request("GET", "/next")
                    self.assertEqual(client.answer().json()["path"], "/next", "the connection goes on")
                else:
                    self.assertEqual(answer.status, expected, answer)
                    reason = "too-large" if expected == 431 else "bad-request"
                    self.assertEqual(answer.header("x-fanfare-reason"), reason)
                    self.assertEqual(answer.header("connection"), "close")
                    self.assertEqual(answer.json()["reason"], reason)
                    self.assertTrue(client.at_end(), "nothing after an ambiguity is read")
        self.assertEqual(sandbox.ask().status, 200)

    def test_bytes_one_by_one(self):
        sandbox = self.sandbox()
        with sandbox.connect() as client:
            for byte in b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n":
                client.send(bytes((byte,)))
            self.assertEqual(client.answer().json()["event"], "abc")

    def test_pipelining(self):
        sandbox = self.sandbox()
        with sandbox.connect() as client:
            one = b"POST /%d HTTP/1.1\r\ncontent-length: 4\r\n\r\n%04d"
            client.send(b"".join(one % (n, n) for n in range(100)))
            for n in range(100):
                answer = client.answer().json()
                self.assertEqual((answer["path"], answer["body_bytes"]), ("/%d" % n, 4))

    def test_connections_are_kept_or_closed_as_asked(self):
        sandbox = self.sandbox()
        for data, kept in [
            (b"GET / HTTP/1.1\r\n\r\n", True),
            (b"GET / HTTP/1.1\r\nconnection: x, Close\r\n\r\n", False),
            (b"GET / HTTP/1.0\r\n\r\n", False),
            (b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", True),
        ]:
            with self.subTest(data=data), sandbox.connect() as client:
                for _ in range(3 if kept else 1):
                    client.send(data)
                    answer = client.answer()
                    self.assertEqual(answer.status, 200)
                    self.assertEqual(answer.header("connection") == "close", not kept)
                if not kept:
                    self.assertTrue(client.at_end())

    def test_idle_and_half_sent_connections_hold_up_nobody(self):
        sandbox = self.sandbox()
        idle, half = sandbox.connect(), sandbox.connect()
        with idle, half:
            idle.request()
            idle.answer()
            half.send(b"GET / HTTP/1.1\r\nhost:")
            for _ in range(3):
                self.assertEqual(sandbox.ask().status, 200)
            half.send(b" fn\r\n\r\n")
            self.assertEqual(half.answer().status, 200)
            idle.request()
            self.assertEqual(idle.answer().status, 200)

    def test_the_time_that_is_left_counts_from_the_head(self):
        sandbox = self.sandbox(FANFARE_BODY_BYTES_MAX="100")
        with sandbox.connect() as client:
            client.send(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\nx-fanfare-deadline-ms: 5000\r\ncontent-length: 3\r\n\r\n")
            self.assertEqual(client.answer().status, 100)
            # The head was read before this, and the body comes after it.
            self.assertFalse(select.select([client.sock], [], [], 0.3)[0])
            client.send(b"abc")
            self.assertLessEqual(client.answer().json()["remaining"], 4700)

    def test_a_peer_that_leaves_in_a_body(self):
        sandbox = self.sandbox()
        with sandbox.connect() as client:
            client.send(b"POST / HTTP/1.1\r\ncontent-length: 10\r\n\r\nabc")
        self.assertEqual(sandbox.ask().status, 200)

    def test_expect(self):
        sandbox = self.sandbox(FANFARE_BODY_BYTES_MAX="1000")
        with sandbox.connect() as client:
            client.send(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
            self.assertEqual(client.answer().status, 100)
            client.send(b"abc")
            self.assertEqual(client.answer().json()["event"], "abc")
            client.send(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 1001\r\n\r\n")
            self.assertEqual(client.answer().status, 413)

    def test_head(self):
        sandbox = self.sandbox()
        with sandbox.connect() as client:
            client.send(b"HEAD / HTTP/1.1\r\n\r\n")
            answer = client.answer("HEAD")
            self.assertEqual(answer.status, 200)
            self.assertGreater(int(answer.header("content-length")), 0)
            body = b'{"do": "stream", "value": ["x"]}'
            client.request("HEAD", "/", [], body)
            self.assertEqual(client.answer("HEAD").status, 200)
            client.request("HEAD", "/", [], b'{"do": "raise"}')
            self.assertEqual(client.answer("HEAD").status, 502)
            client.request("GET", "/after")
            self.assertEqual(client.answer().json()["path"], "/after")

    def test_streams_in_http_1_0_end_with_the_connection(self):
        sandbox = self.sandbox()
        body = b'{"do": "stream", "value": ["a", "b"]}'
        with sandbox.connect() as client:
            client.send(b"POST / HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            answer = client.answer()
            self.assertEqual((answer.header("transfer-encoding"), answer.body), ("", b"ab"))

    def test_body_limit(self):
        sandbox = self.sandbox(FANFARE_BODY_BYTES_MAX="100000")
        exact = b"x" * 100000
        self.assertEqual(sandbox.ask("POST", "/", [], exact).json()["body_bytes"], 100000)
        over = b"x" * 5000000
        for data in (
            b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(over) + over,
            b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + b"10000\r\n" + b"x" * 65536 + b"\r\n%x\r\n" % len(over) + over + b"\r\n",
        ):
            with sandbox.connect() as client:
                client.send(data)
                answer = client.answer()
                self.assertEqual((answer.status, answer.header("x-fanfare-reason")), (413, "too-large"))
                self.assertIn("100000", answer.json()["detail"])
                self.assertTrue(client.at_end())

    def test_large_bodies(self):
        sandbox = self.sandbox()
        body = b"\xff" + bytes(range(256)) * 40000
        answer = sandbox.ask("POST", "/", [], body)
        self.assertEqual(answer.json()["body_bytes"], len(body))

    def test_a_slow_reader_gets_all_of_a_large_answer(self):
        sandbox = self.sandbox()
        with sandbox.connect() as client:
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            value = "x" * 3000000
            client.request("POST", "/", [], b'{"do": "return", "value": "%s"}' % value.encode())
            self.assertEqual(client.answer().body.decode(), value)

    def test_many_connections(self):
        sandbox = self.sandbox()
        clients = [sandbox.connect() for _ in range(50)]
        for _ in range(2):
            for client in clients:
                client.request()
            for client in clients:
                self.assertEqual(client.answer().status, 200)
        for client in clients:
            client.sock.close()


class PythonHttp(Http, unittest.TestCase):
    language, file = "python", "contract.py"

    def test_a_body_that_trickles_in_is_waited_for_until_the_deadline(self):
        sandbox = self.sandbox()
        with sandbox.connect() as client:
            client.send(b"POST / HTTP/1.1\r\nx-fanfare-deadline-ms: 200\r\ncontent-length: 1000\r\n\r\n")
            sent = 0
            try:
                while not select.select([client.sock], [], [], 0.01)[0] and sent < 1000:
                    client.send(b"x")
                    sent += 1
            except OSError:
                pass  # closed
            self.assertTrue(client.at_end())
            self.assertLess(sent, 1000)
        # The next request on the connection of another has its own time.
        self.assertEqual(sandbox.ask().status, 200)

    def test_more_connections_than_it_holds_wait_their_turn(self):
        sandbox = self.sandbox()
        clients = []
        for _ in range(1024):
            clients.append(sandbox.connect())
            clients[-1].request()
            clients[-1].answer()
        with sandbox.connect() as late:
            late.request("GET", "/late")
            clients[0].request("GET", "/first")
            self.assertEqual(clients[0].answer().json()["path"], "/first")
            clients.pop().sock.close()
            self.assertEqual(late.answer().json()["path"], "/late")
        for client in clients:
            client.sock.close()


class NodeHttp(Http, unittest.TestCase):
    language, file = "node", "contract.cjs"
    otherwise = {"equal lengths": 400, "spaces around a value": 400, "no version": 505, "coding twice": 400}


if __name__ == "__main__":
    unittest.main()
