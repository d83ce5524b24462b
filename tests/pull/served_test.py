"""Tests /api/pull of `kvcache serve`, and names that it fetches when it starts.

usage: served_test.py KVCACHE MAKE_MODEL Served  (paths of the two programs)
"""

import fcntl
import json
import os
import pathlib
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "cli"), str(HERE.parent / "serve")]

import program
import servers
from program import CliTest
from server_process import MODEL, Server


class Served(CliTest):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
        self.env = {"KVCACHE_MODELS": str(self.root / "models"), "KVCACHE_OFFLINE": "", "HF_HUB_OFFLINE": "",
                    "no_proxy": "*"}
        self.registry = servers.Registry()
        self.addCleanup(self.registry.close)
        self.registry.add("me/tiny:latest", [(servers.MODEL, self.bytes)])
        self.name = f"{self.registry.host}/me/tiny"
        Server.program = program.KVCACHE

    def serve(self, *flags, models=(MODEL,)):
        server = Server(*flags, models=models, environment=self.env)
        self.addCleanup(server.kill)
        return server

    def post(self, server, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return [json.loads(line) for line in answer.read().decode().splitlines()]

    def test_the_stream_of_states(self):
        server = self.serve()
        lines = self.post(server, "/api/pull", {"model": self.name})
        self.assertEqual(lines[0], {"status": "pulling manifest"})
        digest = servers.digest_of(self.bytes)
        last = [line for line in lines if line.get("digest") == digest][-1]
        self.assertEqual(last, {"status": f"pulling {digest[7:19]}", "digest": digest,
                                "total": len(self.bytes), "completed": len(self.bytes)})
        states = [line["status"] for line in lines]
        self.assertIn("verifying sha256 digest", states)
        self.assertEqual(states[-2:], ["writing manifest", "success"])
        answer = self.post(server, "/api/generate", {"model": self.name, "prompt": "one", "stream": False,
                                                     "options": {"num_predict": 4}})
        self.assertTrue(answer[0]["done"])
        self.assertEqual(self.post(server, "/api/pull", {"name": self.name, "stream": False}),
                         [{"status": "success"}])

    def test_errors(self):
        server = self.serve()
        lines = self.post(server, "/api/pull", {"model": f"{self.name}:none"})
        self.assertIn("404", lines[-1]["error"])
        for body, status in (({}, 400), ({"model": "a b"}, 400), ({"model": f"{self.name}:none", "stream": False}, 404)):
            if body.get("model") == "a b":
                body["stream"] = False
            with self.assertRaises(urllib.error.HTTPError) as raised:
                self.post(server, "/api/pull", body)
            self.assertEqual(raised.exception.code, status)

    def test_offline(self):
        server = self.serve("--offline")
        lines = self.post(server, "/api/pull", {"model": self.name})
        self.assertIn("--offline", lines[-1]["error"])
        self.assertEqual(self.registry.asked, [])

    def test_a_name_is_fetched_at_the_start(self):
        server = self.serve(models=(self.name,))
        answer = self.post(server, "/api/generate", {"prompt": "one", "model": self.name, "stream": False,
                                                     "options": {"num_predict": 4}})
        self.assertTrue(answer[0]["done"])

    def silent(self):
        """Lets blobs come never."""
        self.registry.send_blob = lambda request, data: time.sleep(120)

    def begin(self, server, name):
        """Begins a pull whose blob does not come; returns the answer, which is open."""
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}/api/pull",
                                         json.dumps({"model": name}).encode())
        answer = urllib.request.urlopen(request, timeout=60)
        while b"digest" not in answer.readline():
            pass
        return answer

    def test_a_client_that_leaves_ends_its_pull(self):
        self.silent()
        server = self.serve()
        self.begin(server, self.name).close()
        # Its claim on the name ends, though no byte comes.
        self.registry.send_blob = servers.send_file
        self.assertEqual(self.post(server, "/api/pull", {"model": self.name})[-1], {"status": "success"})

    def test_pulls_do_not_wait_for_each_other(self):
        self.registry.add("me/other:latest", [(servers.MODEL, self.bytes + b"x")])
        first = servers.digest_of(self.bytes)
        self.registry.send_blob = lambda request, data: (
            time.sleep(120) if first in request.path else servers.send_file(request, data))
        server = self.serve()
        answer = self.begin(server, self.name)
        self.assertEqual(self.post(server, "/api/pull", {"model": f"{self.registry.host}/me/other"})[-1],
                         {"status": "success"})
        answer.close()

    def test_a_stop_does_not_wait_for_the_lock_of_the_store(self):
        server = self.serve("--stop-seconds", "1")
        store = self.root / "models"
        store.mkdir(exist_ok=True)
        descriptor = os.open(store, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}/api/pull",
                                         json.dumps({"model": self.name}).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.readline()
            start = time.monotonic()
            server.stop()
        self.assertLess(time.monotonic() - start, 15)

    def test_a_stop_ends_a_pull(self):
        def trickle(request, data):
            request.send_response(200)
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            for at in range(0, len(data), 4096):
                request.wfile.write(data[at:at + 4096])
                time.sleep(1)
        self.registry.send_blob = trickle
        server = self.serve("--stop-seconds", "1")
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}/api/pull",
                                         json.dumps({"model": self.name}).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            while b"digest" not in answer.readline():
                pass
            start = time.monotonic()
            server.stop()
        self.assertLess(time.monotonic() - start, 15)


if __name__ == "__main__":
    program.main()
