"""Ollama's routes."""

import re
import time

from contract.client import STORY, Contract, chat, fresh_prompt


class Ollama(Contract):
    def running(self):
        return [model["name"] for model in self.get("/api/ps").json["models"]]

    def tearDown(self):
        self.call("DELETE", "/api/delete", {"model": "mine"})

    def test_what_copilot_asks_for(self):
        self.assertRegex(self.get("/api/version").json["version"], r"^\d+(\.\d+)*$")
        model = self.get("/api/tags").json["models"][0]
        self.assertTrue(model["name"] and model["modified_at"] and model["size"])
        for name in ("model", "name"):
            show = self.ok("/api/show", {name: model["name"]})
            self.assertTrue(show["model_info"])
            self.assertIn("completion", show["capabilities"])
        self.ok("/v1/chat/completions", chat("Hi", model=model["name"]))

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
