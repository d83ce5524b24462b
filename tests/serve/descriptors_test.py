"""Tests a server that is started without descriptors 0 to 2, as some supervisors do: its log goes nowhere, and neither
into its store nor into an answer.

usage: descriptors_test.py KVCACHE
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

from server_process import MODEL

PROGRAM = ""
CLOSED = (0, 1, 2)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def close():
    for descriptor in CLOSED:
        os.close(descriptor)


class Descriptors(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.store = Path(folder.name) / "store"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            [PROGRAM, "serve", MODEL, "--port", self.url.rsplit(":", 1)[1], "--store", str(self.store), "--log", "info"],
            preexec_fn=close)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        self.wait()

    def wait(self):
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=60).close()
                return
            except OSError:
                time.sleep(0.05)
        self.fail(f"the server ended with status {self.process.returncode}")

    def answer(self, number):
        body = {"prompt": f"{number} small animals went into the deep wood. " * 20, "max_tokens": 8}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.read()

    def test_log_lines_go_nowhere(self):
        links = [os.readlink(f"/proc/{self.process.pid}/fd/{descriptor}") for descriptor in CLOSED]
        self.assertEqual(links, ["/dev/null"] * len(CLOSED))
        for number in range(8):
            answer = self.answer(number)
            self.assertIsInstance(json.loads(answer)["choices"][0]["text"], str)
        self.process.terminate()
        self.assertEqual(self.process.wait(60), 0)
        files = [path for path in self.store.rglob("*") if path.is_file()]
        self.assertTrue(files)
        for path in files:
            data = path.read_bytes()
            for line in (b"kvcache: serving", b"kvcache: stopping", b" info request"):
                self.assertNotIn(line, data, path)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
