"""HTTP, transport and strangers."""

import json
import os
import random
import socket
import time
import unittest

from contract.client import STORY, Contract, chat, raw_exchange

SLOW = os.environ.get("KVCACHE_SLOW_TESTS") == "1"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


def status_of(answer):
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.") else None


def request(path, body, *headers):
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


class Http(Contract):
    STORE = False

    def test_405_names_the_methods(self):
        for method, path, allowed in [("GET", "/v1/chat/completions", "POST"), ("PUT", "/v1/messages", "POST"),
                                      ("DELETE", "/health", "GET"), ("POST", "/v1/models", "GET"),
                                      ("POST", "/v1/models/story", "GET"), ("PUT", "/v1/responses/x", "DELETE"),
                                      ("PATCH", "/api/delete", "DELETE"), ("GET", "/api/chat", "POST"),
                                      ("OPTIONS", "/health", "GET"), ("GET", "/v1/responses", "POST")]:
            answer = self.call(method, path)
            self.assertEqual(answer.status, 405, (method, path))
            self.assertIn(allowed, answer.headers["allow"])
            self.assertTrue(answer.json["error"])

    def test_unknown_routes_are_404_in_json(self):
        for path in ["/nothing", "/v1/nothing", "/api/nothing", "/v1/messages/nothing", "/../etc/passwd", "/%00"]:
            answer = self.get(path)
            self.assertEqual((answer.status, bool(answer.json["error"])), (404, True), path)

    def test_head(self):
        answer = self.call("HEAD", "/health")
        self.assertEqual((answer.status, answer.body), (200, b""))
        answer = self.raw(b"HEAD /health HTTP/1.1\r\nHost: a.localhost.example\r\nConnection: close\r\n\r\n")
        self.assertEqual((status_of(answer), answer.partition(b"\r\n\r\n")[2]), (403, b""))

    def test_http_1_0(self):
        answer = self.raw(b"GET /health HTTP/1.0\r\n\r\n")  # ends by itself
        self.assertEqual(status_of(answer), 200)
        body = json.dumps({"prompt": STORY, "max_tokens": 4, "stream": True}).encode()
        answer = self.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        self.assertNotIn(b"chunked", answer)
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n"), answer[-200:])

    def test_pipelining(self):
        one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        last = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = self.raw(one * 20 + last)
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 21)
        self.assertIn(b'"version"', answer)

    def test_pipelining_behind_a_stream(self):
        body = {"prompt": STORY, "max_tokens": 8, "stream": True}
        last = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = self.raw(request("/v1/completions", body) + last)
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 2, answer)
        self.assertLess(answer.index(b"data: [DONE]"), answer.index(b'"version"'))

    def test_chunked_bodies(self):
        body = json.dumps({"prompt": STORY, "max_tokens": 2}).encode()
        for size in (1, 7, len(body)):
            parts = b"".join(b"%x;a=b\r\n%s\r\n" % (len(body[i:i + size]), body[i:i + size])
                             for i in range(0, len(body), size))
            answer = self.raw(POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + parts + b"0\r\n\r\n")
            self.assertEqual(status_of(answer), 200, answer)

    def test_expect(self):
        body = json.dumps({"prompt": STORY, "max_tokens": 2}).encode()
        for value in (b"100-continue", b"100-Continue"):
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
                connection.sendall(POST + b"Content-Length: %d\r\nExpect: %s\r\nConnection: close\r\n\r\n"
                                   % (len(body), value))
                self.assertEqual(connection.recv(1000), b"HTTP/1.1 100 Continue\r\n\r\n")
                connection.sendall(body)
                self.assertEqual(status_of(connection.recv(1000)), 200)
        head = POST + b"Content-Length: 100000000\r\nExpect: 100-continue\r\n\r\n"
        self.assertEqual(status_of(self.raw(head)), 413)

    def test_refused(self):
        cases = {
            "headers over 100,000 bytes": b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 100_001 + b"\r\n\r\n",
            "20,000 headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
            "a long target": b"GET /" + b"x" * 100_001 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "a length with chunks": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "chunks with a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
            "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
            "equal lengths": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
            "a list of lengths": POST + b"Content-Length: 2, 2\r\n\r\n{}",
            "a negative length": POST + b"Content-Length: -2\r\n\r\n{}",
            "a length with a sign": POST + b"Content-Length: +2\r\n\r\n{}",
            "a folded header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\n\r\n",
            "a bad chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
            "a chunk too long for a number": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n",
            "two codings": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
            "a space before the colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
            "no version": b"GET /health\r\n\r\n",
            "version 3": b"GET /health HTTP/3.0\r\nHost: localhost\r\n\r\n",
            "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            "a null byte": b"GET /health HTTP/1.1\r\nHost: local\x00host\r\n\r\n",
            "no host": b"GET /health HTTP/1.1\r\nA: b\r\n\r\n",
            "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        }
        for name, data in cases.items():
            with self.subTest(name):
                answer = self.raw(data, seconds=10)
                status = status_of(answer) if answer else 400
                self.assertIn(status, range(400, 600), answer[:200])
                if answer:
                    self.assertIn(b"error", answer.partition(b"\r\n\r\n")[2])
        self.assertEqual(self.get("/health").status, 200)

    def test_bodies_of_100_mb_are_refused(self):
        framings = [b"Transfer-Encoding: chunked\r\n\r\n5f5e100\r\n", b"Content-Length: 100000000\r\n\r\n"]
        for framing in framings if SLOW else framings[:1]:
            before = self.server.resident()
            answer = self.raw(POST + framing + b" " * 100_000_000, seconds=30)
            self.assertIn(status_of(answer) if answer else 413, (400, 413))
            self.assertLess(self.server.resident(), before + (64 << 20))

    def test_a_refused_request_has_a_json_error(self):
        for body in [b"", b"{", b"[]", b"nul", b'"x"', b"\xff\xfe", b'{"a":' * 5000, b"1" * 5000, b'{"prompt": "\xff"}']:
            for path in ("/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses", "/tokenize"):
                answer = self.post(path, body)
                self.assertEqual(answer.status, 400, (path, body[:20], answer))
                self.assertTrue(answer.json["error"])
                self.assertEqual(answer.headers["content-type"], "application/json")

    def test_a_silent_connection_stays(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            time.sleep(4)
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertIn(b"200 OK", connection.recv(1000))

    @unittest.skipUnless(SLOW, "takes more than a minute")
    def test_what_trickles_is_let_go(self):
        starts = [b"GET /health HTTP/1.1\r\n", POST + b"Content-Length: 5000\r\n\r\n"]
        sockets = [socket.create_connection(("127.0.0.1", self.port)) for _ in starts]
        for connection, start in zip(sockets, starts):
            connection.sendall(start)
            connection.settimeout(0.1)
        begin = time.monotonic()
        left = set(range(len(starts)))
        while left and time.monotonic() < begin + 75:
            for i in list(left):
                try:
                    sockets[i].sendall(b"a")
                    sockets[i].recv(1000)  # an answer or the end
                    left.discard(i)
                except TimeoutError:
                    pass
                except OSError:
                    left.discard(i)
            time.sleep(1)
        self.assertFalse(left)
        for connection in sockets:
            connection.close()

    def test_random_bytes_break_nothing(self):
        picks = random.Random(7)
        good = request("/v1/completions", {"prompt": STORY, "max_tokens": 2}, "Connection: close")
        for _ in range(150 if SLOW else 40):
            data = bytearray(good)
            for _ in range(picks.randrange(1, 6)):
                at = picks.randrange(len(data))
                data[at:at + picks.randrange(3)] = bytes(picks.randrange(256) for _ in range(picks.randrange(4)))
            self.raw(bytes(data), seconds=5, shut=True)
        self.assertEqual(self.get("/health").status, 200)


class Streams(Contract):
    STORE = False

    def test_a_slow_reader_slows_only_itself(self):
        body = {"prompt": STORY, "max_tokens": 900, "stream": True, "n": 4, "temperature": 1, "logprobs": 5}
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request("/v1/completions", body))
            for _ in range(5):
                start = time.monotonic()
                self.assertEqual(self.post("/v1/completions", {"prompt": STORY, "max_tokens": 4}).status, 200)
                self.assertLess(time.monotonic() - start, 5)
        self.assert_idle()

    def test_health_answers_while_the_engine_is_busy(self):
        body = {"prompt": STORY, "max_tokens": 900, "stream": True, "n": 8, "temperature": 1}
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(request("/v1/completions", body))
            times = []
            for _ in range(20):
                start = time.monotonic()
                self.assertEqual(self.get("/health").status, 200)
                times.append(time.monotonic() - start)
            self.assertLess(sorted(times)[10], 0.2)
        self.assert_idle()


class Strangers(Contract):
    def test_foreign_hosts_are_refused(self):
        for host in ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example",
                     "0.0.0.0", "192.168.0.1", "[::2]", "[::1].evil.example", "localhostx", "127.0.0.1@evil"]:
            answer = self.get("/v1/models", headers={"Host": host})
            self.assertEqual((answer.status, bool(answer.json["error"])), (403, True), host)
        for host in ["localhost", "127.0.0.1", "[::1]", "localhost:1", "LocalHost"]:
            self.assertEqual(self.get("/v1/models", headers={"Host": host}).status, 200, host)

    def test_foreign_origins_get_no_permission(self):
        for origin in ["https://evil.example", "null", "http://localhost:1"]:
            for method, path in [("GET", "/v1/models"), ("OPTIONS", "/v1/chat/completions"), ("GET", "/state")]:
                answer = self.call(method, path, headers={"Origin": origin})
                self.assertNotIn("access-control-allow-origin", answer.headers)

    def test_no_request_names_a_file(self):
        from server_process import MODEL
        for name in [MODEL, "../models/story.gguf", "./story.gguf", "file://" + MODEL, "/etc/passwd", "..", "."]:
            self.assertEqual(self.post("/v1/chat/completions", chat("Hi", model=name)).status, 404, name)
            self.assertEqual(self.post("/api/show", {"model": name}).status, 404, name)
            self.assertEqual(self.post("/api/generate", {"model": name}).status, 404, name)
            answer = self.post("/api/create", {"model": "mine", "from": name})
            self.assertIn(answer.status, (400, 404), name)
            self.assertIn(self.post("/api/copy", {"source": name, "destination": "mine"}).status, (400, 404))
        for name in ["../../evil", "/tmp/evil", "a/../../b"]:
            answer = self.post("/api/create", {"model": name, "from": "story"})
            self.assertIn(answer.status, (400, 404), name)
        for more in [{"files": {"a.gguf": "sha256:" + "0" * 64}}, {"adapters": {"a": "b"}}, {"files": {"x": MODEL}}]:
            self.assertIn(self.post("/api/create", {"model": "mine", "from": "story", **more}).status, (400, 404))
            self.assertIn(self.post("/api/create", {"model": "mine", **more}).status, (400, 404))
        listed = [model["name"] for model in self.get("/api/tags").json["models"]]
        self.assertNotIn("mine:latest", listed)
