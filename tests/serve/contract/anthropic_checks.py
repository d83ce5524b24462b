"""Anthropic's routes."""

from contract.client import STORY, Contract, chat, fresh_prompt

TOKENS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class Anthropic(Contract):
    STORE = False

    def refused(self, body, word=""):
        for stream in (False, True):
            answer = self.post("/v1/messages", {**body, "stream": stream})
            self.assertEqual(answer.status, 400, (body, answer))
            self.assertEqual(answer.json["error"]["type"], "invalid_request_error")
            self.assertIn(word, answer.json["error"]["message"])

    def test_bad_requests(self):
        body = chat("Hi", temperature=None)
        self.refused({"messages": body["messages"]}, "max_tokens")
        self.refused({**body, "temperature": 9}, "temperature")
        self.refused({**body, "tool_choice": {"type": "auto"}}, "tool_choice")
        self.refused({**body, "tools": [], "tool_choice": {"type": "any"}}, "tool_choice")
        for ttl in ("2h", "5", "", 5, "5M", [], "1 h"):
            marked = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral", "ttl": ttl}}]
            self.refused({**body, "messages": [{"role": "user", "content": marked}]}, "ttl")
            self.refused({**body, "system": marked}, "ttl")
        for field, values in {"max_tokens": ["5", 0, 1.5, True], "messages": ["x", [], [1], [{"role": "system"}]],
                              "system": [1, {}], "stop_sequences": ["x", [1]], "temperature": ["1", -1, True],
                              "top_k": ["x", -2], "top_p": [2], "thinking": ["x", {"type": "y"}], "tools": ["x", [1]]
                              }.items():
            for value in values:
                self.refused({**body, field: value})

    def test_system_messages_stand_anywhere(self):
        def talk(content):
            return [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."},
                    {"role": "system", "content": content}, {"role": "user", "content": "Go on."},
                    {"role": "system", "content": content}]

        body = {"max_tokens": 8, "temperature": 0}
        chat_answer = self.ok("/v1/chat/completions", {**body, "messages": talk("Be brief.")})
        for content in ("Be brief.", [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]):
            messages = {"messages": talk(content)}
            answer = self.ok("/v1/messages", {**body, **messages})
            self.assertEqual(answer["content"][0]["text"], chat_answer["choices"][0]["message"]["content"])
            count = self.ok("/v1/messages/count_tokens", messages)["input_tokens"]
            self.assertEqual(count, chat_answer["usage"]["prompt_tokens"])
        # A conversation that grows keeps its prompt.
        longer = talk("Be brief.") + [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "More."}]
        usage = self.ok("/v1/messages", {**body, "messages": longer})["usage"]
        self.assertGreaterEqual(usage["cache_read_input_tokens"], 0.9 * count)

    def test_cache_numbers_are_in_start_and_delta(self):
        body = chat(fresh_prompt(), stream=True)
        for sent_before in (False, True):
            events = self.post("/v1/messages", body).events
            start = next(e for e in events if e["type"] == "message_start")["message"]["usage"]
            delta = next(e for e in events if e["type"] == "message_delta")["usage"]
            for name in TOKENS:
                self.assertEqual(start[name], delta[name], name)
            self.assertEqual(start["cache_read_input_tokens"] > 16, sent_before)  # also without cache_control

    def test_numbers_add_up(self):
        text = fresh_prompt(20)
        marked = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
        body = {"system": marked, "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 2}
        count = self.ok("/v1/messages/count_tokens", {k: v for k, v in body.items() if k != "max_tokens"})
        first = self.ok("/v1/messages", body)["usage"]
        second = self.ok("/v1/messages", body)["usage"]
        for usage in (first, second):
            self.assertEqual(sum(usage[name] for name in TOKENS), count["input_tokens"])
        self.assertGreater(first["cache_creation_input_tokens"], 50)
        self.assertEqual(second["cache_creation_input_tokens"], 0)
        self.assertGreaterEqual(second["cache_read_input_tokens"], 0.9 * count["input_tokens"])

    def test_however_short_a_mark_is_creation(self):
        word = fresh_prompt(1)
        marked = [{"type": "text", "text": word, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
                  {"type": "text", "text": " And then?"}]
        usage = self.ok("/v1/messages", {"messages": [{"role": "user", "content": marked}], "max_tokens": 1})["usage"]
        self.assertGreater(usage["cache_creation_input_tokens"], 0)

    def test_events_have_their_order(self):
        answer = self.post("/v1/messages", chat(STORY, stream=True))
        names = [line[7:] for line in answer.text.split("\n") if line.startswith("event: ")]
        self.assertEqual([e["type"] for e in answer.events], names)
        self.assertEqual(names[:2] + names[-3:],
                         ["message_start", "content_block_start", "content_block_stop", "message_delta",
                          "message_stop"])

    def test_marks_are_restore_points(self):
        system = [{"type": "text", "text": fresh_prompt(20), "cache_control": {"type": "ephemeral"}}]
        body = {"system": system, "max_tokens": 1}
        self.ok("/v1/messages", {**body, "messages": [{"role": "user", "content": fresh_prompt(3)}]})
        usage = self.ok("/v1/messages", {**body, "messages": [{"role": "user", "content": fresh_prompt(3)}]})["usage"]
        self.assertGreater(usage["cache_read_input_tokens"], 0.7 * sum(usage[name] for name in TOKENS))
