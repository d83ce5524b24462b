"""OpenAI's routes: names, prompts, ends, sampling, errors."""

import json
import unittest

from contract.client import STORY, Contract, chat, events_text, fresh_prompt


class Names(Contract):
    STORE = False

    def test_the_first_name_works_on_every_route(self):
        name = self.get("/v1/models").json["data"][0]["id"]
        tag = self.get("/api/tags").json["models"][0]["name"]
        for model in (name, tag):
            self.assertEqual(self.get(f"/v1/models/{model}").json["id"], name)
            self.ok("/v1/chat/completions", chat("Hi", model=model))
            self.ok("/v1/completions", {"model": model, "prompt": STORY, "max_tokens": 2})
            self.ok("/v1/responses", {"model": model, "input": "Hi", "max_output_tokens": 2})
            self.ok("/v1/messages", {**chat("Hi"), "model": model})
            self.ok("/v1/messages/count_tokens", {"messages": chat("Hi")["messages"], "model": model})
            self.ok("/api/chat", {"model": model, "messages": chat("Hi")["messages"], "stream": False,
                                  "options": {"num_predict": 2}})
            self.ok("/api/generate", {"model": model, "prompt": "Hi", "stream": False, "options": {"num_predict": 2}})
            self.ok("/api/show", {"model": model})

    def test_models_have_both_shapes(self):
        models = self.get("/v1/models").json
        self.assertEqual((models["has_more"], models["first_id"], models["last_id"]), (False, "story", "story"))
        model = models["data"][0]
        self.assertEqual((model["type"], model["object"], model["display_name"]), ("model", "model", "story"))
        self.assertRegex(model["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual({model[k] for k in ("context_length", "context_window", "max_model_len")}, {1024})
        self.assertEqual((model["meta"]["n_ctx"], model["max_input_tokens"]), (1024, 1023))

    def test_an_unknown_model_is_404_in_the_shape_of_its_api(self):
        self.assertEqual(self.get("/v1/models/nothing").json["error"]["code"], "model_not_found")
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize"):
            answer = self.post(path, {"model": "nothing"})
            error = answer.json["error"]
            self.assertEqual((answer.status, error["param"], error["code"]), (404, "model", "model_not_found"))
        answer = self.post("/v1/messages", {"model": "nothing"})
        self.assertEqual((answer.status, answer.json["error"]["type"]), (404, "not_found_error"))
        answer = self.post("/api/chat", {"model": "nothing"})
        self.assertEqual((answer.status, type(answer.json["error"])), (404, str))


class Prompts(Contract):
    STORE = False

    def counts(self, messages):
        """Returns the number of the prompt's tokens on all chat routes."""
        system = "\n".join(m["content"] for m in messages if m["role"] in ("system", "developer"))
        rest = [m for m in messages if m["role"] not in ("system", "developer")]
        more = {"system": system} if system else {}
        usage = self.ok("/v1/messages", {"messages": rest, "max_tokens": 1, **more})["usage"]
        anthropic = sum(usage[k] for k in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))
        ollama = [{**m, "role": m["role"].replace("developer", "system")} for m in messages]
        return [
            self.ok("/v1/chat/completions", {"messages": messages, "max_tokens": 1})["usage"]["prompt_tokens"],
            self.ok("/v1/responses", {"input": messages, "max_output_tokens": 1})["usage"]["input_tokens"],
            self.ok("/v1/responses/input_tokens", {"input": messages})["input_tokens"],
            anthropic,
            self.ok("/v1/messages/count_tokens", {"messages": rest, **more})["input_tokens"],
            self.ok("/api/chat", {"messages": ollama, "stream": False, "options": {"num_predict": 1}})
            ["prompt_eval_count"],
            self.ok("/probe", {"messages": messages})["prompt_tokens"],
        ]

    def test_one_conversation_has_one_prompt(self):
        conversations = [
            [{"role": "user", "content": STORY}],
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": STORY}],
            [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": STORY},
             {"role": "assistant", "content": "Yes.  "}, {"role": "user", "content": "\n And then? ä€😀"}],
        ]
        for messages in conversations:
            counts = self.counts(messages)
            self.assertEqual(len(set(counts)), 1, (messages, counts))

    def test_one_conversation_has_one_text(self):
        messages = [{"role": "system", "content": "A story."}, {"role": "user", "content": STORY}]
        texts = [
            self.ok("/v1/chat/completions", {"messages": messages, "max_tokens": 12, "temperature": 0})
            ["choices"][0]["message"]["content"],
            self.ok("/v1/responses", {"input": messages[1:], "instructions": "A story.", "max_output_tokens": 12,
                                      "temperature": 0})["output"][0]["content"][0]["text"],
            self.ok("/v1/messages", {"messages": messages[1:], "system": "A story.", "max_tokens": 12,
                                     "temperature": 0})["content"][0]["text"],
            self.ok("/api/chat", {"messages": messages, "stream": False,
                                  "options": {"num_predict": 12, "temperature": 0}})["message"]["content"],
            self.ok("/api/generate", {"prompt": STORY, "system": "A story.", "stream": False,
                                      "options": {"num_predict": 12, "temperature": 0}})["response"],
        ]
        self.assertEqual(len(set(texts)), 1, texts)

    def test_parts_are_joined_and_developer_is_system(self):
        def prompt(messages):
            return self.ok("/apply-template", {"messages": messages})["prompt"]
        parts = [{"type": "text", "text": "Once upon"}, {"type": "text", "text": " a time"}]
        self.assertEqual(prompt([{"role": "user", "content": parts}]),
                         prompt([{"role": "user", "content": "Once upon a time"}]))
        user = {"role": "user", "content": "Hi"}
        self.assertEqual(prompt([{"role": "developer", "content": "x"}, user]),
                         prompt([{"role": "system", "content": "x"}, user]))

    def test_raw_prompts_agree(self):
        one = self.ok("/v1/completions", {"prompt": STORY, "max_tokens": 12, "temperature": 0})
        other = self.ok("/api/generate", {"prompt": STORY, "raw": True, "stream": False,
                                          "options": {"num_predict": 12, "temperature": 0}})
        self.assertEqual(one["choices"][0]["text"], other["response"])
        self.assertEqual(one["usage"]["prompt_tokens"], other["prompt_eval_count"])

    def test_null_and_unknown_fields_are_ignored(self):
        nulls = {name: None for name in ["temperature", "top_p", "n", "stop", "stream", "seed", "tools", "tool_choice",
                                         "response_format", "logprobs", "logit_bias", "stream_options", "user",
                                         "presence_penalty", "max_completion_tokens", "functions", "audio"]}
        plain = self.ok("/v1/chat/completions", chat(STORY))
        other = self.ok("/v1/chat/completions", {**chat(STORY), **{k: v for k, v in nulls.items() if k != "temperature"},
                                                 "metadata": {"a": 1}, "x_new_field": [1, {"y": 2}]})
        self.assertEqual(plain["choices"][0]["message"], other["choices"][0]["message"])

    def test_hints_and_neutral_values_change_nothing(self):
        plain = self.ok("/v1/chat/completions", chat(STORY))["choices"][0]["message"]
        for more in [{"verbosity": "low"}, {"service_tier": "flex"}, {"store": True}, {"prompt_cache_key": "k"},
                     {"safety_identifier": "s"}, {"prediction": {"type": "content", "content": "x"}},
                     {"prompt_cache_retention": "24h"}, {"typical_p": 1}, {"mirostat": 0, "mirostat_eta": 0.1},
                     {"top_k": 40.0}, {"top_k": -1}, {"tfs_z": 1.0}, {"repetition_penalty": 1}, {"best_of": 1},
                     {"frequency_penalty": 0}, {"n": 1.0}, {"seed": 5.0}, {"max_tokens": 8.0}]:
            answer = self.ok("/v1/chat/completions", chat(STORY, **more))
            self.assertEqual(answer["choices"][0]["message"], plain, more)
        for verbosity in ("low", "medium", "high"):
            body = {"input": STORY, "max_output_tokens": 2, "text": {"verbosity": verbosity}}
            self.assertEqual(self.ok("/v1/responses", body)["text"]["verbosity"], verbosity)

    def test_tools_of_unknown_types_change_nothing(self):
        tools = [{"type": "web_search"}, {"type": "computer_use_preview", "display_width": 3}, {"type": "x"}]
        before = self.ok("/probe", {"messages": chat(STORY)["messages"]})["prompt_tokens"]
        with_tools = self.ok("/v1/chat/completions", chat(STORY, tools=tools))
        self.assertEqual(with_tools["usage"]["prompt_tokens"], before)
        answer = self.ok("/v1/responses", {"input": STORY, "max_output_tokens": 1, "tools": tools})
        self.assertEqual(answer["usage"]["input_tokens"], before)
        tools = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}]
        usage = self.ok("/v1/messages", {**chat(STORY), "tools": tools})["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"]
                         + usage["cache_creation_input_tokens"], before)

    def test_what_codex_sends(self):
        body = {"client_metadata": {"a": "b"}, "include": ["reasoning.encrypted_content"], "instructions": "Be brief.",
                "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
                "parallel_tool_calls": True, "prompt_cache_key": "k", "reasoning": {"effort": "low", "summary": "auto"},
                "store": False, "stream": True, "tool_choice": "auto", "max_output_tokens": 4,
                "tools": [{"type": "web_search"}, {"type": "local_shell"}, {"type": "image_generation"}]}
        answer = self.post("/v1/responses", body)
        self.assertEqual(answer.status, 200, answer)
        self.assertEqual(answer.events[0]["type"], "response.created")


class Ends(Contract):
    STORE = False

    def test_the_limit_has_its_name(self):
        body = chat(STORY, max_tokens=3)
        whole = self.ok("/v1/chat/completions", body)
        self.assertEqual(whole["choices"][0]["finish_reason"], "length")
        self.assertEqual(whole["usage"]["completion_tokens"], 3)
        events = self.post("/v1/chat/completions", {**body, "stream": True}).events
        self.assertEqual([c["finish_reason"] for e in events for c in e["choices"]][-1], "length")
        self.assertEqual(self.ok("/v1/messages", body)["stop_reason"], "max_tokens")
        response = self.ok("/v1/responses", {"input": STORY, "max_output_tokens": 3})
        self.assertEqual((response["status"], response["incomplete_details"]["reason"]),
                         ("incomplete", "max_output_tokens"))
        events = self.post("/v1/responses", {"input": STORY, "max_output_tokens": 3, "stream": True}).events
        self.assertEqual(events[-1]["type"], "response.incomplete")
        line = self.post("/api/chat", {"messages": body["messages"], "options": {"num_predict": 3}}).lines[-1]
        self.assertEqual((line["done_reason"], line["eval_count"]), ("length", 3))

    def test_stop(self):
        text = self.ok("/v1/completions", {"prompt": STORY, "max_tokens": 40, "temperature": 0})["choices"][0]["text"]
        word = text.split()[4]
        for stream in (False, True):
            answer = self.post("/v1/completions", {"prompt": STORY, "max_tokens": 40, "temperature": 0, "stop": [word],
                                                   "stream": stream})
            cut = events_text(answer.events) if stream else answer.json["choices"][0]["text"]
            self.assertEqual(cut, text[:text.index(word)])

    def test_usage_in_streams(self):
        body = chat(fresh_prompt(), stream=True, stream_options={"include_usage": True})
        for cached in (False, True):
            events = self.post("/v1/chat/completions", body).events
            self.assertEqual(events[-1]["choices"], [])
            self.assertEqual(events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 16, cached)
        self.assertTrue(all(e["usage"] is None for e in events[:-1]))


class SeveralPrompts(Contract):
    STORE = False

    def test_each_prompt_has_its_choices(self):
        prompts = ["Once upon a time", "Mia had a red ball.", "The dog"]
        body = {"max_tokens": 6, "temperature": 1, "seed": 9, "n": 2}
        alone = [self.ok("/v1/completions", {**body, "prompt": prompt}) for prompt in prompts]
        texts = [c["text"] for answer in alone for c in answer["choices"]]
        whole = self.ok("/v1/completions", {**body, "prompt": prompts})
        self.assertEqual([(c["index"], c["text"]) for c in whole["choices"]], list(enumerate(texts)))
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            self.assertEqual(whole["usage"][name], sum(a["usage"][name] for a in alone))
        events = self.post("/v1/completions", {**body, "prompt": prompts, "stream": True}).events
        streamed = [""] * 6
        for choice in (c for e in events for c in e["choices"]):
            streamed[choice["index"]] += choice["text"]
        self.assertEqual(streamed, texts)
        tokens = [self.ok("/tokenize", {"content": p, "add_special": True})["tokens"] for p in prompts]
        for prompt in (tokens, [tokens[0], prompts[1], tokens[2]]):
            answer = self.ok("/v1/completions", {**body, "prompt": prompt})
            self.assertEqual([c["text"] for c in answer["choices"]], texts)
        one = self.ok("/v1/completions", {**body, "prompt": tokens[1]})
        self.assertEqual([c["text"] for c in one["choices"]], texts[2:4])

    def test_no_limit(self):
        for limit in ("max_tokens", "n_predict"):
            answer = self.ok("/v1/completions", {"prompt": STORY, limit: -1, "stop": ["."], "temperature": 0})
            self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        answer = self.ok("/v1/chat/completions", chat(STORY, max_tokens=None, max_completion_tokens=-1, stop="."))
        self.assertGreater(answer["usage"]["completion_tokens"], 2)


class Sampling(Contract):
    STORE = False
    BODY = {"prompt": STORY, "max_tokens": 24, "temperature": 1, "seed": 5}

    def texts(self, stream=False, **more):
        answer = self.post("/v1/completions", {**self.BODY, "stream": stream, **more})
        self.assertEqual(answer.status, 200, answer)
        if not stream:
            return [c["text"] for c in answer.json["choices"]]
        choices = [c for e in answer.events for c in e["choices"]]
        count = max(c["index"] for c in choices) + 1
        return ["".join(c["text"] for c in choices if c["index"] == i) for i in range(count)]

    def test_a_seed_repeats_a_text(self):
        from concurrent.futures import ThreadPoolExecutor
        alone = self.texts()
        self.assertEqual(self.texts(stream=True), alone)
        with ThreadPoolExecutor(12) as pool:
            others = [pool.submit(self.texts, stream=i % 2 == 1, seed=5 if i % 3 == 0 else i) for i in range(12)]
            self.assertTrue(all(others[i].result() == alone for i in range(0, 12, 3)))
        self.assertNotEqual(self.texts(seed=6), alone)
        self.assertNotEqual(self.texts(seed=None), self.texts(seed=None))

    def test_choices_differ_but_not_at_temperature_0(self):
        self.assertEqual(len(set(self.texts(n=4))), 4)
        self.assertEqual(self.texts(n=4, stream=True), self.texts(n=4))
        self.assertEqual(len(set(self.texts(n=3, temperature=0))), 1)

    def test_logprobs_are_the_models(self):
        reads = []
        for temperature in (0, 1):
            body = {**self.BODY, "temperature": temperature, "max_tokens": 1, "logprobs": 5, "top_k": 1}
            choice = self.ok("/v1/completions", body)["choices"][0]
            reads.append(choice["logprobs"]["token_logprobs"])
        self.assertEqual(reads[0], reads[1])
        self.assertLess(reads[0][0], 0)
        content = self.ok("/v1/chat/completions", chat(STORY, logprobs=True, top_logprobs=3))
        for token in content["choices"][0]["logprobs"]["content"]:
            self.assertEqual(token["logprob"], token["top_logprobs"][0]["logprob"])  # greedy
            self.assertEqual(bytes(token["bytes"]).decode(errors="replace"), token["token"])

    def test_logit_bias_forces_and_bans(self):
        # Not a token that ends the text.
        token = self.ok("/tokenize", {"content": " ball"})["tokens"][-1]
        word = self.ok("/detokenize", {"tokens": [token]})["content"].strip()
        text = self.texts(logit_bias={str(token): 100}, max_tokens=3, temperature=0)[0]
        self.assertEqual(text.replace(" ", ""), word.replace(" ", "") * 3)
        greedy = self.ok("/v1/completions", {**self.BODY, "temperature": 0, "max_tokens": 1, "logprobs": 0})
        first = greedy["choices"][0]["logprobs"]["tokens"][0]
        ids = [i for i in range(1024) if self.piece(i) == first]
        banned = self.texts(logit_bias={str(i): -100 for i in ids}, max_tokens=1, temperature=0)[0]
        self.assertNotEqual(banned, greedy["choices"][0]["text"])

    def piece(self, token):
        if not hasattr(self, "pieces"):
            text = self.ok("/tokenize", {"content": " ".join(STORY.split()), "with_pieces": True})
            self.pieces = {t["id"]: t["piece"] for t in text["tokens"]}
            for word in ("She", "He", "One", "Every", "It", "The", "Her", "Mia", "\n"):
                for t in self.ok("/tokenize", {"content": word, "with_pieces": True})["tokens"]:
                    self.pieces[t["id"]] = t["piece"]
                for t in self.ok("/tokenize", {"content": ". " + word, "with_pieces": True})["tokens"]:
                    self.pieces[t["id"]] = t["piece"]
        return self.pieces.get(token)


class Errors(Contract):
    STORE = False

    def refused(self, path, body, field=None, status=400):
        answer = self.post(path, body)
        self.assertEqual(answer.status, status, (path, body, answer))
        error = answer.json["error"]
        if not path.startswith(("/v1/messages", "/api/")):
            self.assertEqual(set(error), {"message", "type", "param", "code"}, answer)
            if field:
                self.assertEqual(error["param"], field, (body, answer))
                self.assertIn(field.split("[")[0].split(".")[0], error["message"])
        elif path.startswith("/v1/messages"):
            self.assertEqual((answer.json["type"], error["type"]), ("error", "invalid_request_error"))
        else:
            self.assertIsInstance(error, str)

    def test_a_wrong_type_is_never_taken_for_a_right_one(self):
        cases = {"max_tokens": ["5", 1.5, True, -2, 0, [], 1e99], "temperature": ["1", True, [], 9, -1],
                 "top_p": ["1", True, 2, -0.1], "n": ["2", 0, 1.5, True, 1000], "stream": ["true", 1, 0, {}],
                 "seed": ["1", 1.5, {}], "stop": [1, {}, [1], [None]], "logit_bias": [[], "x", {"a": 1}, {"1": "x"}],
                 "presence_penalty": ["x", 3], "frequency_penalty": [True, -3], "stream_options": [1, "x"],
                 "messages": ["x", {}, [], [1], [{"role": "user"}], [{"content": "x"}], [{"role": "x", "content": ""}],
                              [{"role": "user", "content": 1}], [{"role": "user", "content": [1]}]],
                 "model": [1, {}, True], "tools": ["x", {}], "response_format": [1, "json"],
                 "max_completion_tokens": ["x", 0]}
        for field, values in cases.items():
            for value in values:
                for stream in (False, True):
                    body = {**chat("Hi", max_tokens=2), "stream": stream, field: value}
                    self.refused("/v1/chat/completions", body, field)

    def test_wrong_types_of_other_routes(self):
        self.refused("/v1/completions", {"prompt": {}}, "prompt")
        self.refused("/v1/completions", {}, "prompt")
        self.refused("/v1/completions", {"prompt": "x", "echo": True}, "echo")
        self.refused("/v1/responses", {"input": 1})
        self.refused("/v1/responses", {})
        self.refused("/v1/responses", {"input": "x", "max_output_tokens": "y"}, "max_output_tokens")
        self.refused("/v1/responses", {"input": "x", "stream": "y"}, "stream")
        self.refused("/api/chat", {"messages": "x"})
        self.refused("/api/chat", {"messages": chat("Hi")["messages"], "options": 1})
        self.refused("/api/chat", {"messages": chat("Hi")["messages"], "options": {"num_predict": "x"}})
        self.refused("/api/chat", {"messages": chat("Hi")["messages"], "stream": "x"})
        self.refused("/api/generate", {"prompt": 1})
        self.refused("/api/generate", {"prompt": "x", "raw": "y"})
        self.refused("/api/generate", {"prompt": "x", "keep_alive": {}})
        self.refused("/api/generate", {"prompt": "x", "keep_alive": "soon"})
        self.refused("/tokenize", {"content": 1})
        self.refused("/detokenize", {"tokens": [1.5]})
        self.refused("/detokenize", {"tokens": [99999999]})

    def test_what_changes_the_answer_is_refused(self):
        both = {"typical_p": 0.5, "tfs_z": 0.5, "mirostat": 1, "xtc_probability": 0.1, "dry_multiplier": 0.8,
                "ignore_eos": True, "min_tokens": 4, "stop_token_ids": [5], "best_of": 3, "grammar": 'root ::= "a"',
                "guided_regex": "a+", "guided_grammar": "x", "structured_outputs": {"regex": "a+"}, "regex": "a",
                "json_schema": {"not": {}}, "guided_json": {"not": {}}, "guided_choice": [],
                "response_format": {"type": "regex", "pattern": "a+"}}
        for name, value in both.items():
            field = "structured_outputs.regex" if name == "structured_outputs" else name
            self.refused("/v1/chat/completions", chat("Hi", **{name: value}), field)
            self.refused("/v1/completions", {"prompt": "Hi", name: value}, field)
        self.refused("/v1/completions", {"prompt": "Hi", "suffix": "x"}, "suffix")
        self.refused("/v1/chat/completions", chat("Hi", functions=[{"name": "f"}]), "functions")

    def test_images_are_refused_clearly(self):
        url = "data:image/png;base64,iVBORw0KGgo="
        parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
        answer = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]})
        self.assertEqual(answer.status, 400)
        self.assertIn("image", answer.json["error"]["message"])
        image = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}]
        answer = self.post("/v1/messages", {"messages": [{"role": "user", "content": image}], "max_tokens": 1})
        self.assertEqual(answer.status, 400)
        self.assertIn("image", answer.json["error"]["message"])
        parts = [{"type": "input_image", "image_url": url}]
        answer = self.post("/v1/responses", {"input": [{"role": "user", "content": parts}]})
        self.assertEqual(answer.status, 400)
        self.assertIn("image", answer.json["error"]["message"])
        answer = self.post("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["iVBORw0KGgo="]}]})
        self.assertEqual(answer.status, 400)
        self.assertIn("image", answer.json["error"])
        answer = self.post("/api/generate", {"prompt": "x", "images": ["iVBORw0KGgo="]})
        self.assertEqual(answer.status, 400)
        self.assertIn("image", answer.json["error"])

    def test_a_prompt_beyond_the_context(self):
        text = "Mia had a red ball. " * 400
        for path, body in [("/v1/chat/completions", chat(text)), ("/v1/completions", {"prompt": text}),
                           ("/v1/responses", {"input": text})]:
            field = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/responses": "input"}[path]
            for stream in (False, True):
                answer = self.post(path, {**body, "stream": stream})
                error = answer.json["error"]
                self.assertEqual((answer.status, error["code"]), (400, "context_length_exceeded"), path)
                self.assertEqual(error["param"], field)
                self.assertRegex(error["message"], r"maximum context length is \d+ tokens.*exceeds the context window")
        for path, body in [("/v1/messages", chat(text)), ("/api/chat", {"messages": chat(text)["messages"]}),
                           ("/api/generate", {"prompt": text})]:
            self.refused(path, {**body, "stream": True})
        message = self.post("/v1/messages", chat(text)).json["error"]["message"]
        self.assertRegex(message, r"^prompt is too long: \d+ tokens > \d+ maximum$")
        self.assertRegex(self.post("/api/chat", chat(text)).json["error"],
                         "^the input length exceeds the context length")

    def test_previous_responses(self):
        first = self.ok("/v1/responses", {"input": "Hi", "max_output_tokens": 2})
        again = {"input": "And?", "max_output_tokens": 2, "previous_response_id": first["id"]}
        self.ok("/v1/responses", again)
        other = self.ok("/v1/responses", {"input": "Hi", "max_output_tokens": 2, "store": False})
        for name in ("resp_unknown", other["id"]):
            answer = self.post("/v1/responses", {**again, "previous_response_id": name})
            self.assertIn(answer.status, (400, 404), name)
        self.assertEqual(self.get(f"/v1/responses/{first['id']}").json["id"], first["id"])
        self.assertEqual(self.get(f"/v1/responses/{other['id']}").status, 404)
        self.assertTrue(self.call("DELETE", f"/v1/responses/{first['id']}").json["deleted"])
        self.assertEqual(self.get(f"/v1/responses/{first['id']}").status, 404)
