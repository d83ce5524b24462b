#!/usr/bin/env python3
"""Stores that fail beneath a server: store_faults_test.py KVCACHE [SUITE...]"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

from server_process import Server

WORDS = "Once upon a time there was a little fox. "

KEEP = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("x", flush=True)
time.sleep(1000)
"""


class StoreFaults(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.store = Path(self.folder.name) / "store"
        self.serial = 0

    def serve(self, store=None):
        server = Server("--store", str(store or self.store))
        self.addCleanup(server.process.stderr.close)
        self.addCleanup(server.process.wait)
        self.addCleanup(server.process.kill)
        return server

    def ask(self, server, prompt=None):
        """Returns the answer to a prompt; without one, to one that nobody sent before."""
        return self.answer(server, prompt)["choices"][0]["text"]

    def answer(self, server, prompt=None):
        if prompt is None:
            self.serial += 1
            prompt = f"{self.serial} {WORDS * 12}"
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/completions",
                                         json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def stop(self, server):
        """SIGTERM ends the server with status 0, soon."""
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(30), 0)
        self.assertLess(time.monotonic() - start, 10)

    def keep(self, name):
        """Starts a process that has a lock of the store, and stops it."""
        self.store.mkdir(mode=0o700, exist_ok=True)
        keeper = subprocess.Popen([sys.executable, "-c", KEEP, str(self.store / name)], stdout=subprocess.PIPE)
        self.addCleanup(keeper.stdout.close)
        self.addCleanup(keeper.wait)
        self.addCleanup(keeper.kill)
        keeper.stdout.read(1)
        keeper.send_signal(signal.SIGSTOP)
        return keeper


class Stopped(StoreFaults):
    def test_another_server_that_is_stopped_while_it_stores(self):
        for delay in (0.0, 0.01, 0.03, 0.1):
            other, server = self.serve(), self.serve()
            text = self.ask(server, WORDS * 12)
            self.ask(other)
            time.sleep(delay)
            other.process.send_signal(signal.SIGSTOP)
            for _ in range(5):
                self.ask(server)
            self.assertEqual(self.ask(server, WORDS * 12), text)
            self.stop(server)
            other.process.kill()

    def test_each_lock(self):
        for name in ("write-lock", "read-lock"):
            server = self.serve()
            keeper = self.keep(name)
            for _ in range(5):
                self.ask(server)
            self.stop(server)
            keeper.kill()

    def test_a_lock_that_is_taken_before_the_server_starts(self):
        for name in ("lock", "write-lock", "read-lock"):
            keeper = self.keep(name)
            server = self.serve()
            self.ask(server)
            self.stop(server)
            keeper.kill()

    def test_a_lock_that_is_free_again_later(self):
        for name in ("lock", "write-lock", "read-lock"):
            shutil.rmtree(self.store, ignore_errors=True)
            keeper = self.keep(name)
            server = self.serve()
            self.ask(server)
            keeper.kill()
            file = self.store / "objects.mdb"
            for _ in range(120):  # the pause is over after some seconds
                self.ask(server)
                if file.exists() and file.stat().st_size > 100_000:
                    break
                time.sleep(0.5)
            prompt = f"{name} {WORDS * 12}"
            self.ask(server, prompt)
            self.stop(server)
            server = self.serve()
            details = self.answer(server, prompt)["usage"]["prompt_tokens_details"]
            self.assertGreater(details["cached_tokens"], 0, name)
            self.stop(server)

    @unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")
    def test_a_redis_server(self):
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            port = any_port.getsockname()[1]
        redis = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                                  "--dir", self.folder.name], stdout=subprocess.DEVNULL)
        self.addCleanup(redis.wait)
        self.addCleanup(redis.kill)
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.02)
        server = self.serve(f"{self.store},redis://127.0.0.1:{port}")
        self.ask(server)
        redis.send_signal(signal.SIGSTOP)
        for _ in range(5):
            self.ask(server)
        self.stop(server)


class Cut(StoreFaults):
    def test_the_file_of_an_open_store(self):
        texts = {}
        server = self.serve()
        for share in (0.9, 0.5, 0.1, 0.0):
            for number in range(4):
                prompt = f"{number} {WORDS * 12}"
                text = self.ask(server, prompt)
                self.assertEqual(texts.setdefault(prompt, text), text)
            time.sleep(0.3)
            path = self.store / "objects.mdb"
            os.truncate(path, int(path.stat().st_size * share))
            for prompt, text in texts.items():
                self.assertEqual(self.ask(server, prompt), text)
            for _ in range(3):
                self.ask(server)
            self.assertIsNone(server.process.poll())
        self.stop(server)


if __name__ == "__main__":
    Server.program = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
