"""What other projects' checks ask of a server, in own words: docs/compliance.md lists the results."""

import json

from contract.client import STORY, Contract, ScriptedContract, chat, events_text, fresh_prompt

# The fields that the schema of Open Responses wants in every response.
RESPONSE_FIELDS = """id object created_at completed_at status incomplete_details model previous_response_id instructions
    output error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty
    top_logprobs temperature reasoning user usage max_output_tokens max_tool_calls store background service_tier metadata
    safety_identifier prompt_cache_key""".split()


class LlamaServer(Contract):
    """What llama.cpp's server tests ask of the routes that both have."""

    STORE = False

    def test_health_and_models(self):
        self.assertEqual(self.get("/health").json["status"], "ok")
        models = self.get("/v1/models").json
        self.assertEqual((models["object"], models["data"][0]["object"]), ("list", "model"))

    def test_chat(self):
        body = {"messages": [{"role": "system", "content": "Book"}, {"role": "user", "content": "Hey"}], "max_tokens": 8}
        answer = self.ok("/v1/chat/completions", body)
        self.assertIn("cmpl", answer["id"])
        self.assertEqual(answer["choices"][0]["message"]["role"], "assistant")
        events = self.post("/v1/chat/completions", {**body, "stream": True}).events
        self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertTrue(all("role" not in e["choices"][0]["delta"] for e in events[1:]))
        self.assertEqual(len({e["id"] for e in events}), 1)
        self.assertNotIn("content", events[-1]["choices"][0]["delta"])

    def test_bad_messages(self):
        for messages in [None, "string", [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}],
                         [{"content": "hello"}], [{"role": "system", "content": "test"}, {}]]:
            self.assertEqual(self.post("/v1/chat/completions", {"messages": messages}).status, 400, messages)

    def test_response_formats(self):
        for form, text in [({"type": "json_object", "schema": {"const": "42"}}, '"42"'),
                           ({"type": "json_schema", "json_schema": {"schema": {"const": "foooooo"}}}, '"foooooo"')]:
            choice = self.ok("/v1/chat/completions", chat("Write an example", response_format=form, max_tokens=30))
            self.assertEqual(choice["choices"][0]["message"]["content"], text)
        for form in [{"type": "sound"}, {"type": "json_object", "schema": 123},
                     {"type": "json_object", "schema": {"type": 123}},
                     {"type": "json_object", "schema": {"type": "hiccup"}}]:
            self.assertEqual(self.post("/v1/chat/completions", chat("x", response_format=form)).status, 400, form)

    def test_logprobs(self):
        body = chat(STORY, logprobs=True, top_logprobs=10, max_tokens=5)
        choice = self.ok("/v1/chat/completions", body)["choices"][0]
        tokens = choice["logprobs"]["content"]
        self.assertEqual("".join(t["token"] for t in tokens).strip(), choice["message"]["content"].strip())
        self.assertTrue(all(t["logprob"] <= 0 and t["bytes"] and len(t["top_logprobs"]) == 10 for t in tokens))
        events = self.post("/v1/chat/completions", {**body, "stream": True}).events
        streamed = [t for e in events for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
        self.assertEqual(streamed, tokens)

    def test_completions(self):
        body = {"prompt": STORY, "max_tokens": 8, "temperature": 1, "seed": 42}
        whole = self.ok("/v1/completions", body)["choices"][0]["text"]
        self.assertEqual(events_text(self.post("/v1/completions", {**body, "stream": True}).events), whole)
        self.assertEqual(self.ok("/v1/completions", body)["choices"][0]["text"], whole)
        others = {self.ok("/v1/completions", {**body, "seed": seed})["choices"][0]["text"] for seed in range(4)}
        self.assertEqual(len(others), 4)

    def test_tokens(self):
        text = "What is the capital of France ? \n\u3042 \U0001f600"
        tokens = self.ok("/tokenize", {"content": text})["tokens"]
        self.assertEqual(self.ok("/detokenize", {"tokens": tokens})["content"].strip(), text)
        special = self.ok("/tokenize", {"content": text, "add_special": True})["tokens"]
        self.assertEqual(special[1:], tokens)
        pieces = self.ok("/tokenize", {"content": "Hello world", "with_pieces": True})["tokens"]
        self.assertTrue(all(isinstance(t["id"], int) and t["piece"] for t in pieces))

    def test_template(self):
        prompt = self.ok("/apply-template", {"messages": [{"role": "system", "content": "You are a test."},
                                                          {"role": "user", "content": "Hi there"}]})["prompt"]
        self.assertIn("Hi there", prompt)

    def test_messages(self):
        answer = self.ok("/v1/messages", {"messages": [{"role": "user", "content": "Hello"},
                                                       {"role": "assistant", "content": "Hi there!"},
                                                       {"role": "user", "content": "How are you?"}],
                                          "system": [{"type": "text", "text": "Be kind."}], "max_tokens": 20})
        self.assertEqual((answer["type"], answer["role"]), ("message", "assistant"))
        self.assertGreater(answer["usage"]["output_tokens"], 0)
        count = self.ok("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hello"}]})
        self.assertEqual(list(count), ["input_tokens"])
        result = [{"type": "tool_result", "tool_use_id": "a", "content": "Sunny", "is_error": True},
                  {"type": "text", "text": "These are the results."}]
        self.ok("/v1/messages", {"max_tokens": 4, "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
            {"role": "user", "content": result}]})
        for bad in [{"messages": [{"role": "user", "content": "x"}]}, {"max_tokens": 5}]:
            self.assertEqual(self.post("/v1/messages", bad).status, 400)

    def test_cached_tokens(self):
        prompt = fresh_prompt()
        counts = [self.ok("/v1/chat/completions", chat(prompt))["usage"]["prompt_tokens_details"]["cached_tokens"]
                  for _ in range(2)]
        self.assertGreater(counts[1], counts[0])

    def test_stops_and_penalties(self):
        for more in [{"stop": ["."]}, {"frequency_penalty": 1.5, "presence_penalty": 1.5}, {"top_k": 3, "min_p": 0.1}]:
            self.ok("/v1/completions", {"prompt": STORY, "max_tokens": 16, **more})


class OpenResponses(ScriptedContract):
    """What the compliance tests of Open Responses ask."""

    TOOL = {"type": "function", "name": "get_weather", "description": "Returns the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}

    def respond(self, *messages, **more):
        items = [{"type": "message", "role": role, "content": content} for role, content in messages]
        body = {"model": self.name, "input": items, **more}
        if not more.get("stream"):
            response = self.ok("/v1/responses", body)
            self.check(response)
            return response
        answer = self.post("/v1/responses", body)
        self.assertEqual(answer.status, 200, answer)
        events = answer.events
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        self.assertEqual([e["type"] for e in events[:2]], ["response.created", "response.in_progress"])
        for event in events:
            if "response" in event:
                self.check(event["response"])
        return events

    def check(self, response):
        missing = [name for name in RESPONSE_FIELDS if name not in response]
        self.assertEqual(missing, [])
        self.assertEqual(response["object"], "response")

    def test_basic_response(self):
        response = self.respond(("user", "Say hello in exactly 3 words."))
        self.assertEqual(response["status"], "completed")
        self.assertTrue(response["output"])

    def test_streaming_response(self):
        events = self.respond(("user", "Count from 1 to 5."), stream=True)
        self.assertEqual(events[-1]["type"], "response.completed")
        self.assertEqual(events[-1]["response"]["status"], "completed")

    def test_system_prompt(self):
        self.assertEqual(self.respond(("system", "You are a pirate."), ("user", "Say hello."))["status"], "completed")

    def test_multi_turn(self):
        response = self.respond(("user", "My name is Alice."), ("assistant", "Hello Alice!"), ("user", "Who am I?"))
        self.assertEqual(response["status"], "completed")

    def test_tool_calling(self):
        response = self.respond(("user", "How is the weather?"), tools=[self.TOOL], temperature=0)
        call = next(item for item in response["output"] if item["type"] == "function_call")
        self.assertEqual(json.loads(call["arguments"]), {"city": "Paris"})

    def test_tool_calling_streaming(self):
        events = self.respond(("user", "How is the weather?"), tools=[self.TOOL], temperature=0, stream=True)
        kinds = [(e["type"], e.get("item", {}).get("type")) for e in events]
        for kind in [("response.output_item.added", "function_call"), ("response.function_call_arguments.delta", None),
                     ("response.function_call_arguments.done", None), ("response.output_item.done", "function_call")]:
            self.assertIn(kind, kinds)
