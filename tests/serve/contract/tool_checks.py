"""Tools, with a model that calls get_weather when it may."""

import json

from contract.client import ScriptedContract

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
              "additionalProperties": False}
WEATHER = {"name": "get_weather", "description": "Returns the weather.", "parameters": PARAMETERS}
FORCED = {"name": "paint", "description": "Paints.",
          "parameters": {"type": "object", "properties": {"color": {"enum": ["red", "blue"]}}, "required": ["color"],
                         "additionalProperties": False}}
QUESTION = [{"role": "user", "content": "How is the weather?"}]


class Tools(ScriptedContract):
    def body(self, *tools, **more):
        wrapped = [{"type": "function", "function": tool} for tool in tools]
        return {"model": self.name, "messages": QUESTION, "temperature": 0, "max_tokens": 200, "tools": wrapped, **more}

    def test_show_lists_tools(self):
        self.assertIn("tools", self.ok("/api/show", {"model": self.name})["capabilities"])
        self.assertNotIn("tools", self.ok("/api/show", {"model": "story"})["capabilities"])

    def test_streamed_calls(self):
        events = self.post("/v1/chat/completions", self.body(WEATHER, stream=True)).events
        calls = [c for e in events for choice in e["choices"] for c in choice["delta"].get("tool_calls", [])]
        self.assertTrue(all(c["index"] == 0 for c in calls))
        self.assertEqual([("id" in c, "name" in c["function"]) for c in calls],
                         [(True, True)] + [(False, False)] * (len(calls) - 1))
        self.assertEqual(json.loads("".join(c["function"]["arguments"] for c in calls)), {"city": "Paris"})
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "tool_calls")
        for event in events:
            for choice in event["choices"]:
                self.assertNotEqual(choice["delta"].get("tool_calls"), [])
        text = self.post("/v1/chat/completions", {**self.body(), "stream": True, "tools": None}).events
        self.assertFalse(any("tool_calls" in c["delta"] for e in text for c in e["choices"]))

    def test_whole_calls(self):
        choice = self.ok("/v1/chat/completions", self.body(WEATHER))["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertEqual(choice["message"]["tool_calls"][0]["function"]["name"], "get_weather")
        answer = self.ok("/v1/messages", {
            "model": self.name, "messages": QUESTION, "max_tokens": 200, "temperature": 0,
            "tools": [{"name": "get_weather", "input_schema": PARAMETERS}]})
        self.assertEqual(answer["stop_reason"], "tool_use")
        self.assertEqual(answer["content"][-1]["input"], {"city": "Paris"})
        answer = self.ok("/v1/responses", {"model": self.name, "input": QUESTION, "temperature": 0,
                                           "tools": [{"type": "function", **WEATHER}]})
        call = answer["output"][-1]
        self.assertEqual((call["type"], json.loads(call["arguments"])), ("function_call", {"city": "Paris"}))
        answer = self.ok("/api/chat", {"model": self.name, "messages": QUESTION, "stream": False,
                                       "options": {"temperature": 0}, "tools": self.body(WEATHER)["tools"]})
        self.assertEqual(answer["message"]["tool_calls"][0]["function"]["arguments"], {"city": "Paris"})

    def test_forced_calls_follow_their_schema(self):
        for stream in (False, True):
            for choice in ("required", {"type": "function", "function": {"name": "paint"}}):
                body = self.body(FORCED, tool_choice=choice, parallel_tool_calls=False, stream=stream, temperature=1)
                answer = self.post("/v1/chat/completions", body)
                self.assertEqual(answer.status, 200, answer)
                if stream:
                    calls = [c for e in answer.events for o in e["choices"] for c in o["delta"].get("tool_calls", [])]
                    arguments = json.loads("".join(c["function"]["arguments"] for c in calls))
                else:
                    arguments = json.loads(answer.json["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
                self.assertIn(arguments["color"], ("red", "blue"))

    def test_forced_calls_without_a_schema_have_an_object(self):
        for parameters in ({}, None, {"description": "x"}):
            for choice in ("required", {"type": "function", "function": {"name": "paint"}}):
                for seed in range(8):
                    body = self.body({"name": "paint", "parameters": parameters}, tool_choice=choice, seed=seed,
                                     temperature=1, max_tokens=300)
                    choice_ = self.ok("/v1/chat/completions", body)["choices"][0]
                    self.assertEqual(choice_["finish_reason"], "tool_calls", choice_)
                    arguments = choice_["message"]["tool_calls"][0]["function"]["arguments"]
                    self.assertIsInstance(json.loads(arguments), dict)

    def test_allowed_tools(self):
        names = [{"type": "function", "function": {"name": "get_weather"}}]
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": names}}
        answer = self.ok("/v1/chat/completions", self.body(WEATHER, {"name": "paint"}, tool_choice=choice))
        call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
        self.assertEqual((call["name"], json.loads(call["arguments"])), ("get_weather", {"city": "Paris"}))

    def test_thoughts_come_before_a_form(self):
        body = {"model": self.name, "messages": QUESTION, "stream": False, "format": {"const": 7},
                "options": {"temperature": 0}, "tools": self.body(WEATHER)["tools"]}
        message = self.ok("/api/chat", {**body, "think": True})["message"]
        self.assertEqual((message["thinking"], message["content"]), ("The user wants the weather.", "7"))
        message = self.ok("/api/chat", {**body, "think": False})["message"]
        self.assertEqual((message.get("thinking", ""), message["content"]), ("", "7"))

    def test_bad_choices(self):
        for choice in ("x", 1, {"type": "function"}, {"type": "function", "function": {"name": "none"}}, []):
            answer = self.post("/v1/chat/completions", self.body(WEATHER, tool_choice=choice))
            self.assertEqual((answer.status, answer.json["error"]["param"]), (400, "tool_choice"), choice)
        answer = self.post("/v1/chat/completions", self.body(tool_choice="required"))
        self.assertEqual(answer.status, 400)

    def test_a_schema_beside_tools_is_enforced(self):
        schema = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"],
                  "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
        for strict in (False, True):
            tool = {**FORCED, "strict": strict}
            for seed in range(6):
                body = self.body(tool, response_format=form, temperature=2, seed=seed, max_tokens=300,
                                 parallel_tool_calls=False)
                choice = self.ok("/v1/chat/completions", body)["choices"][0]
                calls = choice["message"].get("tool_calls", [])
                self.assertEqual(choice["finish_reason"], "tool_calls" if calls else "stop", choice)
                for call in calls:
                    self.assertIn(json.loads(call["function"]["arguments"]), ({"color": "red"}, {"color": "blue"}))
                if not calls:
                    self.assertIn(json.loads(choice["message"]["content"])["mood"], ("good", "bad"))
