"""What operators need: health, metrics, limits, the end of the server."""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contract.client import STORY, Contract, fresh_prompt
from server_process import MODEL, Server


class Operators(Contract):
    STORE = False
    FLAGS = ("--ctx", "8192", "--threads", "1", "--prefill-chunk", "64")

    def send(self, body):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        data = json.dumps(body).encode()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
                           % (len(data), data))
        return connection

    def test_counters_grow_while_tokens_are_computed(self):
        def grows(name, before):
            def has_grown():
                now = self.metrics()
                return now["kvcache_requests_running"] > 0 and now[name] > before[name]
            return self.wait(has_grown)

        before = self.metrics()
        growing = [name for name in before if "token" in name and name.endswith("_total")]
        connections = [self.send({"prompt": fresh_prompt(700), "max_tokens": 1}) for _ in range(8)]
        self.assertTrue(grows("kvcache_prompt_tokens_computed_total", before))
        self.assertTrue(self.wait(lambda: self.metrics()["kvcache_requests_running"] == 0, 60))
        before = self.metrics()
        connections += [self.send({"prompt": STORY, "max_tokens": 4000, "temperature": 1}) for _ in range(4)]
        self.assertTrue(grows("kvcache_generated_tokens_total", before))
        for connection in connections:
            connection.close()
        self.assertTrue(growing)
        self.assert_idle()

    def test_the_histogram_of_first_tokens(self):
        text = self.get("/metrics").text
        histograms = re.findall(r"# TYPE (\S+) histogram", text)
        self.assertTrue(any("first" in name or "ttft" in name for name in histograms))
        for name in histograms:
            counts = [float(n) for n in re.findall(rf'{name}_bucket{{le="[^"]+"}} (\S+)', text)]
            self.assertEqual(counts, sorted(counts))
            self.assertEqual(counts[-1], float(re.search(rf"{name}_count (\S+)", text).group(1)))

    def computes_nothing(self):
        first = self.metrics()["kvcache_evaluated_tokens_total"]
        time.sleep(0.3)
        return self.metrics()["kvcache_evaluated_tokens_total"] == first

    def four_at_once(self, prompt, stream):
        """Returns the connections of four requests that run. On a busy machine the first may end before the last begins."""
        for _ in range(20):
            connections = [self.send({"prompt": f"{i} {prompt}", "max_tokens": 4000, "stream": stream, "temperature": 1,
                                      "logit_bias": {}}) for i in range(4)]
            if self.wait(lambda: self.metrics()["kvcache_requests_running"] == 4, 1):
                return connections
            for connection in connections:
                connection.close()
            self.assert_idle()
        self.fail("four requests never ran at once")

    def test_nothing_is_computed_after_the_clients_left(self):
        for stream in (True, False):
            for prompt in (fresh_prompt(700), STORY):  # in a prompt, and in an answer
                connections = self.four_at_once(prompt, stream)
                for connection in connections:
                    connection.close()
                self.assertTrue(self.wait(self.computes_nothing, 30), (stream, len(prompt)))
                self.assert_idle()

    def test_200_requests_at_once(self):
        def ask(i):
            answer = self.post("/v1/completions", {"prompt": f"{i} {STORY}", "max_tokens": 8}, seconds=60)
            if answer.status != 200:
                self.assertTrue(answer.headers["retry-after"])
            return answer.status

        with ThreadPoolExecutor(200) as pool:
            statuses = list(pool.map(ask, range(200)))
        self.assertLessEqual(set(statuses), {200, 429, 503})
        self.assertGreaterEqual(statuses.count(200), 16)


class Life(unittest.TestCase):
    def run_one(self, prepare):
        start = time.monotonic()
        server = Server("--store", "none", "--ctx", "1024", "--log", "info")
        self.assertLess(time.monotonic() - start, 60)
        connections = prepare(server)
        start = time.monotonic()
        server.stop()  # status 0
        self.assertLess(time.monotonic() - start, 10)
        for connection in connections:
            connection.close()
        return server

    def connect(self, server, data):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        connection.sendall(data)
        return connection

    def test_sigterm_with_clients_of_all_kinds(self):
        body = json.dumps({"prompt": STORY, "max_tokens": 900, "stream": True, "n": 8, "temperature": 1}).encode()
        post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        pieces = [b"", b"GET /hea", post, post[:-5], post * 3, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"]
        self.run_one(lambda server: [self.connect(server, piece) for piece in pieces])

    def test_sighup_ends_the_server_unless_it_was_ignored(self):
        server = Server("--store", "none", "--ctx", "1024")
        server.process.send_signal(signal.SIGHUP)
        self.assertEqual(server.process.wait(60), 0)
        server.process.stderr.close()
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        try:
            server = Server("--store", "none", "--ctx", "1024")
        finally:
            signal.signal(signal.SIGHUP, before)
        server.process.send_signal(signal.SIGHUP)
        connection = self.connect(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertIn(b"200 OK", connection.recv(1000))
        connection.close()
        server.stop()

    def test_the_log_has_numbers_but_no_texts(self):
        prompt = "A quite secret word is Rumpelstiltskin."
        body = json.dumps({"prompt": prompt, "max_tokens": 3}).encode()
        post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

        def ask(server):
            connection = self.connect(server, post)
            connection.recv(1000)
            return [connection]

        server = self.run_one(ask)
        self.assertIn("prompt_tokens=", server.rest)
        self.assertNotIn("Rumpel", server.rest)


class Users(Contract):
    """Keys separate users."""

    STORE = False

    @classmethod
    def setUpClass(cls):
        handle, cls.keys = tempfile.mkstemp(prefix="kvcache-keys-")
        cls.addClassCleanup(os.unlink, cls.keys)
        with os.fdopen(handle, "w") as file:
            file.write("sk-aaaaaaaaaaaaaaaaaaaa\nsk-bbbbbbbbbbbbbbbbbbbb\nsk-cccccccccccccccccccc admin\n")
        cls.FLAGS = ("--ctx", "1024", "--api-keys", cls.keys)
        super().setUpClass()

    def test_users_share_nothing(self):
        a, b, admin = ({"Authorization": "Bearer sk-" + letter * 20} for letter in "abc")
        prompt = fresh_prompt(20)
        body = {"prompt": prompt, "max_tokens": 1}
        self.ok("/v1/completions", body, headers=a)
        cached = [self.ok("/v1/completions", body, headers=who)["usage"]["prompt_tokens_details"]["cached_tokens"]
                  for who in (b, a, admin)]
        self.assertLessEqual(cached[0], 1)
        self.assertGreater(cached[1], 50)
        self.assertLessEqual(cached[2], 1)
        fresh = "At night " + fresh_prompt(20)  # the administrator's own prompt begins with a name
        self.ok("/v1/completions", {"prompt": fresh, "max_tokens": 1}, headers=a)
        self.assertNotIn(fresh[:60], self.get("/state", headers=admin).text)
        # The first token is that of all prompts.
        self.assertLessEqual(self.ok("/probe", {"prompt": fresh}, headers=admin)["cached_tokens"], 1)
        for who, status in [({}, 401), ({"Authorization": "Bearer x"}, 401), (a, 403), (admin, 200)]:
            self.assertEqual(self.get("/metrics", headers=who).status, status)
        self.assertEqual(self.get("/health").status, 200)
        self.assertEqual(self.get("/v1/models").status, 401)


class Drafts(Contract):
    """A smaller model drafts for several requests at a time; their answers are those without it."""

    STORE = False
    FLAGS = ("--ctx", "512", "--draft", str(Path(MODEL).with_name("story-draft.gguf")))

    def test_answers_are_those_without(self):
        plain = Server("--ctx", "512", "--store", "none")
        self.addCleanup(plain.stop)
        bodies = [{"prompt": STORY + fresh_prompt(3), "max_tokens": 200, "temperature": i % 2, "seed": i}
                  for i in range(8)]
        before = self.metrics()
        with ThreadPoolExecutor(4) as pool:
            texts = list(pool.map(lambda body: self.ok("/v1/completions", body)["choices"][0]["text"], bodies))
        after = self.metrics()
        evaluated, prompts, generated = (
            after[name] - before[name] for name in ("kvcache_evaluated_tokens_total",
                                                    "kvcache_prompt_tokens_computed_total",
                                                    "kvcache_generated_tokens_total"))
        self.assertGreater(evaluated - prompts, generated, "wrong drafts are evaluated too")
        self.port, drafting = plain.port, self.port
        self.addCleanup(setattr, self, "port", drafting)
        self.assertEqual(texts, [self.ok("/v1/completions", body)["choices"][0]["text"] for body in bodies])


class StoredDrafts(Contract):
    """Two models have the same weights, and one of them has a DRAFT."""

    FLAGS = ("--ctx", "512", "--store", "none")
    MODELS = ("plain", "drafting")
    DRAFT = Path(MODEL).with_name("story-draft.gguf")
    SIZES = {"plain:latest": Path(MODEL).stat().st_size,
             "drafting:latest": Path(MODEL).stat().st_size + DRAFT.stat().st_size}

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="kvcache-models-")
        cls.addClassCleanup(folder.cleanup)
        environment = {"KVCACHE_MODELS": folder.name}
        for name, draft in [("plain", ""), ("drafting", f"DRAFT {cls.DRAFT}\n")]:
            modelfile = Path(folder.name, name + ".txt")
            modelfile.write_text(f"FROM {MODEL}\n{draft}")
            subprocess.run([Server.program, "create", name, "-f", modelfile], check=True,
                           capture_output=True, env={**os.environ, **environment})
        server = Server(*cls.FLAGS, models=cls.MODELS, environment=environment)
        cls.addClassCleanup(server.stop)
        cls.port = server.port

    def ask_both(self):
        """Returns how many tokens of answers each evaluated. Their texts are equal."""
        texts, evaluated = [], []
        for name in self.MODELS:
            before = self.metrics()
            body = {"model": name, "prompt": STORY, "max_tokens": 200, "temperature": 0}
            texts.append(self.ok("/v1/completions", body)["choices"][0]["text"])
            after = self.metrics()
            grown = {key: value - before.get(key, 0) for key, value in after.items()}
            evaluated.append(grown["kvcache_evaluated_tokens_total"] - grown["kvcache_prompt_tokens_computed_total"])
        self.assertEqual(texts[0], texts[1])
        return evaluated

    def test_models(self):
        sizes = {model["model"]: model["size"] for model in self.get("/api/tags").json["models"]}
        self.assertEqual(sizes, self.SIZES)
        plain, drafting = self.ask_both()
        self.assertGreater(drafting, plain * 1.1, "wrong drafts are evaluated too")
        self.assertEqual(len(self.get("/api/ps").json["models"]), 2)


class StoredDraftsUnused(StoredDrafts):
    """Without drafts, the weights of both are loaded once."""

    FLAGS = (*StoredDrafts.FLAGS, "--draft", "none")
    SIZES = dict.fromkeys(StoredDrafts.SIZES, Path(MODEL).stat().st_size)

    def test_models(self):
        sizes = {model["model"]: model["size"] for model in self.get("/api/tags").json["models"]}
        self.assertEqual(sizes, self.SIZES)
        plain, drafting = self.ask_both()
        self.assertLess(drafting, plain * 1.1)
        self.assertEqual(len(self.get("/api/ps").json["models"]), 1)


class StepTime(unittest.TestCase):
    """--step-ms is a whole number of milliseconds in a range."""

    def test_other_values_are_refused_by_name(self):
        for value in ("0", "-1", "3600001", "1.5", "100ms", ""):
            with self.subTest(value):
                ended = subprocess.run([Server.program, "serve", MODEL, "--step-ms", value], capture_output=True, text=True,
                                       timeout=60, check=False)
                self.assertEqual(ended.returncode, 2)
                self.assertIn("--step-ms", ended.stderr)
                self.assertEqual(len(ended.stderr.splitlines()), 1)
