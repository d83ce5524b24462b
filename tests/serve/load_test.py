#!/usr/bin/env python3
"""Loads a server with clients of all kinds: load_test.py KVCACHE [SUITE...]

With KVCACHE_SLOW_TESTS=1 the suite Streams takes ten minutes instead of seconds.
"""

import asyncio
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import unittest

from server_process import Server

SLOW = os.environ.get("KVCACHE_SLOW_TESTS") == "1"
MIB = 1 << 20


def request_bytes(path, body=None, close=True, length=None):
    text = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: localhost\r\n"
    if close:
        head += "Connection: close\r\n"
    if body is not None:
        head += f"Content-Length: {len(text) if length is None else length}\r\n"
    return head.encode() + b"\r\n" + text


async def exchange(port, data, chunk=1 << 16, pause=0.0):
    """Sends bytes, and returns the status and the body of the answer, or None if there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        answer = b""
        while True:
            part = await reader.read(chunk)
            if not part:
                break
            answer += part
            if pause:
                await asyncio.sleep(pause)
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head:
            return None
        if b"chunked" in head:
            parts = []
            while body:
                size, _, body = body.partition(b"\r\n")
                parts.append(body[:int(size, 16)])
                body = body[int(size, 16) + 2:]
            body = b"".join(parts)
        return int(head.split()[1]), body.decode()
    finally:
        writer.close()


async def get_json(port, path):
    status, body = await exchange(port, request_bytes(path))
    assert status == 200, (status, body)
    return json.loads(body)


async def metrics(port):
    _, body = await exchange(port, request_bytes("/metrics"))
    pairs = [line.rsplit(" ", 1) for line in body.splitlines() if line and line[0] != "#"]
    return {name: float(value) for name, value in pairs}


def text_of(body):
    """Returns the text of an answer, streamed or not."""
    if not body.startswith("data: "):
        return json.loads(body)["choices"][0]["text"]
    events = [line[6:] for line in body.split("\n") if line.startswith("data: {")]
    assert body.endswith("data: [DONE]\n\n"), body[-80:]
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


def prompts(count):
    names = ["Mia", "Otto", "Nina", "Tess", "Ivy", "Max"]
    things = ["a red ball", "a green kite", "a brown doll", "a small boat"]
    texts = []
    for i in range(count):
        story = " ".join(f"{names[(i + j) % 6]} had {things[(i * 3 + j) % 4]}." for j in range(4 + i % 20))
        texts.append(f"One morning the children went out. {story}")
    return texts


async def wait_until(check, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if await check():
            return True
        await asyncio.sleep(0.05)
    return False


class Streams(unittest.TestCase):
    """64 clients at once: some behave, some hang up, read slowly, or send nonsense."""

    BUDGET = 48 * MIB
    CLIENTS = 64

    def setUp(self):
        self.server = Server("--store", "none", "--memory-budget", str(self.BUDGET), "--ctx", "512")
        self.port = self.server.port
        self.counts = {}

    def tearDown(self):
        self.server.stop()

    def body(self, index, stream):
        # Half of them at temperature 0, the others with a seed.
        body = {"prompt": self.prompts[index], "max_tokens": 24, "stream": stream, "seed": index}
        body["temperature"] = index % 2
        return body

    async def ask(self, index, stream, **how):
        answer = await exchange(self.port, request_bytes("/v1/completions", self.body(index, stream)), **how)
        self.assertIsNotNone(answer)
        self.assertEqual(answer[0], 200, answer[1])
        return text_of(answer[1])

    async def hang_up(self, index):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = self.body(index, True) | {"max_tokens": 400}
        writer.write(request_bytes("/v1/completions", body))
        await writer.drain()
        await reader.read(random.choice([1, 200, 2000]))
        if random.random() < 0.5:
            writer.transport.abort()
        writer.close()

    async def half_a_request(self):
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = request_bytes("/v1/completions", self.body(0, False))
        writer.write(data[:random.randrange(1, len(data))])
        await writer.drain()
        await asyncio.sleep(random.random() / 10)
        writer.close()

    async def too_much(self):
        try:
            answer = await exchange(self.port, request_bytes("/v1/completions", {}, length=100 * MIB) + bytes(MIB))
        except ConnectionError:
            return  # refused while it was sent
        self.assertIn(answer[0], (413,))

    async def nonsense(self):
        data = random.choice([b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n",
                              b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
                              request_bytes("/v1/completions", {"prompt": [[[[0]]]], "max_tokens": 1e99})])
        try:
            await exchange(self.port, data)
        except ConnectionError:
            return

    async def client(self, end):
        while time.monotonic() < end:
            kind = random.choice(["whole", "whole", "stream", "stream", "slow", "hang_up", "half", "much", "nonsense"])
            index = random.randrange(len(self.prompts))
            if kind in ("whole", "stream", "slow"):
                slow = {"chunk": 64, "pause": 0.002} if kind == "slow" else {}
                text = await self.ask(index, kind != "whole", **slow)
                self.assertEqual(text, self.expected[index], f"prompt {index}, {kind}")
            elif kind == "hang_up":
                await self.hang_up(index)
            elif kind == "half":
                await self.half_a_request()
            elif kind == "much":
                await self.too_much()
            else:
                await self.nonsense()
            self.counts[kind] = self.counts.get(kind, 0) + 1

    async def watch(self, end):
        """Health is always there, and memory within its budget."""
        slowest = 0.0
        while time.monotonic() < end:
            start = time.monotonic()
            status, _ = await exchange(self.port, request_bytes("/health"))
            slowest = max(slowest, time.monotonic() - start)
            self.assertEqual(status, 200)
            held = (await metrics(self.port))['kvcache_held_bytes{tier="live"}']
            self.assertLessEqual(held, self.BUDGET)
            await asyncio.sleep(0.1)
        return slowest

    async def is_idle(self):
        slots = await get_json(self.port, "/slots")
        now = await metrics(self.port)
        return not slots["sequences"] and now["kvcache_requests_running"] == 0

    async def run_load(self):
        self.prompts = prompts(40)
        self.expected = [await self.ask(i, False) for i in range(len(self.prompts))]
        # What a first load leaves for good: threads, arenas, tables.
        await asyncio.gather(*(self.client(time.monotonic() + 1) for _ in range(self.CLIENTS)))
        self.assertTrue(await wait_until(self.is_idle))
        await asyncio.sleep(3)  # connections that were refused linger for two seconds
        before = (self.server.threads(), self.server.descriptors(), self.server.resident())
        end = time.monotonic() + (600 if SLOW else 6)
        *_, slowest = await asyncio.gather(*(self.client(end) for _ in range(self.CLIENTS)), self.watch(end))
        self.assertTrue(await wait_until(self.is_idle), "requests are left")
        await asyncio.sleep(3)
        after = (self.server.threads(), self.server.descriptors(), self.server.resident())
        print(f"served {self.counts}; slowest health {slowest * 1000:.0f} ms; "
              f"threads, descriptors, bytes before {before}, after {after}")
        self.assertEqual(after[0], before[0], "threads")
        self.assertLessEqual(after[1], before[1] + 1, "descriptors")
        self.assertLess(after[2], before[2] + self.BUDGET // 2 + 16 * MIB, "bytes")
        for i, text in enumerate(self.expected):
            self.assertEqual(await self.ask(i, True), text)

    def test(self):
        asyncio.run(self.run_load())


class Idle(unittest.TestCase):
    """Thousands of connections that say nothing cost little, and slow nobody."""

    def test(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        count = 5000 if hard == resource.RLIM_INFINITY else min(5000, hard - 200)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8000) if hard > 0 else 8000, hard))
        server = Server("--store", "none", "--ctx", "512")
        try:
            asyncio.run(self.run_idle(server, count))
        finally:
            server.stop()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    async def run_idle(self, server, count):
        async def ask():
            start = time.monotonic()
            body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
            status, _ = await exchange(server.port, request_bytes("/v1/completions", body))
            self.assertEqual(status, 200)
            return time.monotonic() - start

        await ask()
        alone = sorted([await ask() for _ in range(30)])[15]
        before = server.resident()
        writers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writers.append(writer)
            if len(writers) % 2:  # half of them have asked something
                writer.write(request_bytes("/health", close=False))
                await reader.readuntil(b"}")
        self.assertGreaterEqual(server.descriptors(), count)
        each = (server.resident() - before) / count
        among = sorted([await ask() for _ in range(30)])[15]
        print(f"{count} connections: {each:.0f} bytes each; a request alone {alone * 1000:.1f} ms, "
              f"among them {among * 1000:.1f} ms")
        self.assertLess(each, 65536)
        self.assertLess(among, alone + 0.2)
        for writer in writers:
            writer.close()

        async def are_gone():
            return server.descriptors() < 100

        self.assertTrue(await wait_until(are_gone), "connections are left")


class Killed(unittest.TestCase):
    """After kill -9 under load, clients that try again continue, and prefixes are found."""

    def test(self):
        folder = tempfile.mkdtemp(prefix="kvcache-killed-")
        server = Server("--store", folder, "--ctx", "1024")
        try:
            asyncio.run(self.run_kills(server))
        finally:
            server.stop()
            shutil.rmtree(folder)

    async def ask(self, server, prompt, seconds=60):
        """Asks until there is an answer."""
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0}
        end = time.monotonic() + seconds
        while True:
            try:
                answer = await exchange(server.port, request_bytes("/v1/completions", body))
                if answer is not None and answer[0] == 200:
                    return json.loads(answer[1])
            except (ConnectionError, ValueError):
                pass
            self.assertLess(time.monotonic(), end)
            await asyncio.sleep(0.05)

    async def run_kills(self, server):
        texts = [text + f" Number {i}." for i, text in enumerate(prompts(40)) if len(text) > 150]
        known = {}
        for text in texts[:4]:
            known[text] = (await self.ask(server, text))["choices"][0]["text"]
        for _ in range(5 if SLOW else 2):
            await asyncio.sleep(1)  # objects are written behind
            stop = False

            async def go_on(index):
                while not stop:
                    text = random.choice(texts)
                    answer = (await self.ask(server, text))["choices"][0]["text"]
                    self.assertEqual(known.setdefault(text, answer), answer)

            clients = [asyncio.create_task(go_on(i)) for i in range(16)]
            await asyncio.sleep(1)
            server.kill()
            server.flags[server.flags.index("--port") + 1] = str(server.port)
            await asyncio.get_running_loop().run_in_executor(None, server.start)
            await asyncio.sleep(0.5)
            stop = True
            await asyncio.gather(*clients)
        server.kill()
        server.start()
        for text in texts[:4]:
            answer = await self.ask(server, text)
            self.assertEqual(answer["choices"][0]["text"], known[text])
            usage = answer["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            self.assertGreater(cached, usage["prompt_tokens"] / 2)


class Busy(unittest.TestCase):
    """While prompts are computed, the server answers, and work for clients that left stops."""

    def test(self):
        server = Server("--store", "none", "--ctx", "8192", "--threads", "1", "--prefill-chunk", "64")
        try:
            asyncio.run(self.run_busy(server))
        finally:
            server.stop()

    async def run_busy(self, server):
        long_prompt = "The children went to the lake and played with a ball. " * 500
        body = {"prompt": long_prompt, "max_tokens": 64, "stream": True}
        before = await metrics(server.port)
        connections = []
        for i in range(8):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request_bytes("/v1/completions", body | {"prompt": f"{i} " + long_prompt}))
            await writer.drain()
            connections.append(writer)

        async def grows():
            now = await metrics(server.port)
            names = ["kvcache_evaluated_tokens_total", "kvcache_prompt_tokens_computed_total"]
            grown = all(now[name] > before[name] for name in names)
            return grown and now["kvcache_requests_running"] == 8

        self.assertTrue(await wait_until(grows), "tokens are counted while they are computed")
        slowest = 0.0
        for path in ["/health", "/metrics", "/v1/models", "/health"] * 5:
            start = time.monotonic()
            status, _ = await exchange(server.port, request_bytes(path))
            slowest = max(slowest, time.monotonic() - start)
            self.assertEqual(status, 200)
        self.assertLess(slowest, 1.0)
        for writer in connections:
            writer.transport.abort()
        start = time.monotonic()

        async def nothing_runs():
            return (await metrics(server.port))["kvcache_requests_running"] == 0

        self.assertTrue(await wait_until(nothing_runs, 10))
        stopped = time.monotonic() - start
        count = (await metrics(server.port))["kvcache_evaluated_tokens_total"]
        await asyncio.sleep(0.5)
        self.assertEqual((await metrics(server.port))["kvcache_evaluated_tokens_total"], count)
        print(f"slowest answer {slowest * 1000:.0f} ms; stopped after {stopped * 1000:.0f} ms")


if __name__ == "__main__":
    Server.program = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
