"""Ollama's routes."""

import hashlib
import re
import time

from contract.client import STORY, Contract, chat, fresh_prompt
from server_process import MODEL


class Ollama(Contract):
    def running(self):
        return [model["name"] for model in self.get("/api/ps").json["models"]]

    def tearDown(self):
        self.call("DELETE", "/api/delete", {"model": "mine"})

    def test_what_copilot_asks_for(self):
        version = self.get("/api/version").json
        self.assertRegex(version["version"], r"^\d+\.\d+\.\d+$")
        self.assertGreaterEqual([int(part) for part in version["version"].split(".")], [0, 6, 4])
        self.assertRegex(version["kvcache"], r"^\d+\.\d+\.\d+$")
        model = self.get("/api/tags").json["models"][0]
        self.assertTrue(model["name"] and model["modified_at"] and model["size"])
        for name in ("model", "name"):
            show = self.ok("/api/show", {name: model["name"]})
            self.assertTrue(show["model_info"])
            self.assertIn("completion", show["capabilities"])
        self.ok("/v1/chat/completions", chat("Hi", model=model["name"]))

    def test_lists_describe_files(self):
        with open(MODEL, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        self.ok("/api/generate", {"keep_alive": 60})
        for path in ("/api/tags", "/api/ps"):
            model = next(m for m in self.get(path).json["models"] if m["name"] == "story:latest")
            self.assertEqual(model["digest"], digest)
            self.assertEqual(len(model["digest"][:12]), 12)
            self.assertRegex(model["details"]["parameter_size"], r"^\d+(\.\d+)?[KMB]$")
            self.assertRegex(model["details"]["quantization_level"], r"^[A-Z0-9_]+$")
            self.assertTrue(model["details"]["family"])
        shown = self.ok("/api/show", {"model": "story"})
        self.assertEqual(shown["details"], model["details"])
        self.assertGreater(shown["model_info"]["general.parameter_count"], 1_000_000)

    def test_neutral_options_are_taken(self):
        neutral = {"top_k": 40.0, "typical_p": 1, "tfs_z": 1.0, "mirostat": 0, "num_predict": 8.0, "seed": 3,
                   "repeat_last_n": 64, "num_ctx": 4096, "penalize_newline": True, "num_keep": 4, "top_p": 0.9}
        plain = {"top_k": 40, "num_predict": 8, "seed": 3, "top_p": 0.9}
        texts = {self.ok("/api/generate", {"prompt": STORY, "options": options, "stream": False})["response"]
                 for options in (neutral, plain)}
        self.assertEqual(len(texts), 1)
        for most in (-1, -2, -1.0, 0):
            options = {"num_predict": most, "stop": ["."], "temperature": 0}
            answer = self.ok("/api/generate", {"prompt": STORY, "options": options, "stream": False})
            self.assertTrue(answer["response"], most)
        for options in ({"typical_p": 0.5}, {"mirostat": 2}, {"top_k": "40"}, {"num_predict": 1.5}):
            answer = self.post("/api/generate", {"prompt": STORY, "options": options})
            self.assertEqual(answer.status, 400, options)
            self.assertIn(next(iter(options)), answer.json["error"])

    def test_tools_are_listed_only_where_they_work(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        answer = self.post("/v1/chat/completions", chat("Hi", tools=tools, tool_choice="required", max_tokens=200))
        listed = "tools" in self.ok("/api/show", {"model": "story"})["capabilities"]
        self.assertEqual(answer.status == 200, listed, answer)

    def test_final_lines(self):
        prompt = fresh_prompt()
        for cached in (False, True):
            last = self.post("/api/generate", {"prompt": prompt, "options": {"num_predict": 4}}).lines[-1]
            self.assertEqual((last["done"], last["done_reason"]), (True, "length"))
            self.assertEqual(last["prompt_eval_cached_count"] > 16, cached)
            self.assertGreater(last["prompt_eval_count"], last["prompt_eval_cached_count"])
            for name in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"):
                self.assertIsInstance(last[name], int)
            self.assertGreater(last["total_duration"], 100_000)  # nanoseconds
            self.assertRegex(last["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")

    def test_loading_and_letting_go(self):
        for path, empty in [("/api/generate", {}), ("/api/chat", {"messages": []}), ("/api/generate", {"prompt": ""})]:
            loaded = self.ok(path, {"model": "story", **empty, "stream": False})
            self.assertEqual((loaded["done"], loaded["done_reason"]), (True, "load"))
            self.assertTrue(self.running())
            gone = self.ok(path, {"model": "story", **empty, "keep_alive": 0, "stream": False})
            self.assertEqual((gone["done"], gone["done_reason"]), (True, "unload"))
            self.assertTrue(self.wait(lambda: not self.running(), 3))

    def test_keep_alive(self):
        def until(value):
            self.ok("/api/generate", {"model": "story", "keep_alive": value, "stream": False})
            time_text = self.get("/api/ps").json["models"][0]["expires_at"]
            stamp = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", time_text).group(1)
            import calendar
            return calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S")) - time.time()
        for value, seconds in [(300, 300), ("5m", 300), ("1h30m", 5400), ("90s", 90), ("1.5h", 5400), ("2m30.5s", 150),
                               ("60000ms", 60), ("120", 120)]:
            self.assertAlmostEqual(until(value), seconds, delta=3, msg=value)
        for value in (-1, "-1m", -0.5, "-1s"):
            self.assertGreater(until(value), 365 * 86400)
        for value in ("x", "5 m", "m", {}, [], True, "1d"):
            self.assertEqual(self.post("/api/generate", {"model": "story", "keep_alive": value}).status, 400, value)

    def test_create(self):
        lines = self.post("/api/create", {"model": "mine", "from": "story", "system": "Be brief.",
                                          "parameters": {"temperature": 0, "num_predict": 3}}).lines
        self.assertEqual(lines[-1]["status"], "success")
        listed = [model["name"] for model in self.get("/api/tags").json["models"]]
        self.assertIn("mine:latest", listed)
        answer = self.ok("/api/generate", {"model": "mine", "prompt": STORY, "stream": False})
        self.assertEqual((answer["eval_count"], answer["done_reason"]), (3, "length"))
        own = self.ok("/api/generate", {"model": "story", "prompt": STORY, "system": "Be brief.", "stream": False,
                                        "options": {"num_predict": 3, "temperature": 0}})
        self.assertEqual(answer["response"], own["response"])
        self.assertEqual(answer["prompt_eval_count"], own["prompt_eval_count"])
        self.assertEqual(self.call("DELETE", "/api/delete", {"model": "mine"}).status, 200)
        self.assertEqual(self.post("/api/generate", {"model": "mine", "prompt": "x"}).status, 404)
