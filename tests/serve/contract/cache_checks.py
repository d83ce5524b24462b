"""The cache's numbers, and what clients do to their own prefixes."""

import json
import os
import socket
import tempfile

from contract.client import Contract, chat, fresh_prompt
from server_process import MODEL

SLOW = os.environ.get("KVCACHE_SLOW_TESTS") == "1"


class Numbers(Contract):
    STORE = False

    def usages(self, prompt):
        """Returns (tokens, cached tokens) of each route that takes the prompt as a user's message."""
        messages = chat(prompt)["messages"]
        options = {"num_predict": 1}

        def openai(usage):
            return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

        def responses(usage):
            return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]

        def anthropic(usage):
            read = usage["cache_read_input_tokens"]
            return usage["input_tokens"] + read + usage["cache_creation_input_tokens"], read

        def ollama(answer):
            return answer["prompt_eval_count"], answer["prompt_eval_cached_count"]

        return {
            "chat": lambda: openai(self.ok("/v1/chat/completions", chat(prompt))["usage"]),
            "completion": lambda: openai(self.ok("/v1/completions", {"prompt": prompt, "max_tokens": 1})["usage"]),
            "responses": lambda: responses(self.ok("/v1/responses", {"input": prompt, "max_output_tokens": 1})["usage"]),
            "messages": lambda: anthropic(self.ok("/v1/messages", chat(prompt))["usage"]),
            "ollama chat": lambda: ollama(self.ok("/api/chat", {"messages": messages, "stream": False,
                                                                "options": options})),
            "ollama generate": lambda: ollama(self.ok("/api/generate", {"prompt": prompt, "stream": False, "raw": True,
                                                                        "options": options})),
        }

    def test_a_prompt_sent_before_is_cached_on_every_route(self):
        for first in self.usages(""):
            prompt = fresh_prompt(20)
            routes = self.usages(prompt)
            tokens, cached = routes[first]()
            self.assertLessEqual(cached, 16, first)
            for name, ask in routes.items():
                tokens, cached = ask()
                self.assertGreaterEqual(cached, 0.9 * tokens, (first, name))
                self.assertLess(cached, tokens, (first, name))

    def leave_after_first_text(self, prompt, stream):
        """Ends the connection while the answer is generated."""
        body = json.dumps({"prompt": prompt, "max_tokens": 900, "stream": stream, "temperature": 1}).encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
                               % (len(body), body))
            if stream:
                got = b""
                while b"data: " not in got:
                    part = connection.recv(1000)
                    self.assertTrue(part, f"the connection ended after {got!r}")
                    got += part
            else:
                self.assertTrue(self.wait(
                    lambda: any(s["generated_tokens"] for s in self.get("/slots").json["sequences"])))

    def test_a_retry_finds_what_its_first_attempt_computed(self):
        for stream in (True, False):
            prompt = fresh_prompt(30)
            self.leave_after_first_text(prompt, stream)
            usage = self.ok("/v1/completions", {"prompt": prompt, "max_tokens": 1})["usage"]
            self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], 0.9 * usage["prompt_tokens"])


class TimeOuts(Contract):
    STORE = False
    FLAGS = ("--ctx", "8192", "--threads", "1", "--prefill-chunk", "32")

    def test_a_client_that_times_out_in_its_prompt_goes_on_from_there(self):
        for sentences in (500, 700, 900):  # a longer prompt if the client left too late
            prompt = fresh_prompt(sentences)
            computed = self.leave_in_the_prompt(prompt)
            usage = self.ok("/v1/completions", {"prompt": prompt, "max_tokens": 1})["usage"]
            if computed < usage["prompt_tokens"]:
                self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], 0.8 * computed)
                return
        self.fail("the client always left too late for this check")

    def leave_in_the_prompt(self, prompt):
        """Ends the connection while the prompt is computed; returns how many of its tokens were."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1}).encode()
        before = self.metrics()["kvcache_prompt_tokens_computed_total"]
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
                               % (len(body), body))
            self.assertTrue(self.wait(
                lambda: self.metrics()["kvcache_prompt_tokens_computed_total"] > before + 500))
        self.assert_idle()
        return self.metrics()["kvcache_prompt_tokens_computed_total"] - before


class LetGo(Contract):
    def test_after_keep_alive(self):
        prompt = fresh_prompt(30)
        self.ok("/v1/completions", {"prompt": prompt, "max_tokens": 1})
        self.ok("/api/generate", {"model": "story", "keep_alive": 0, "stream": False})
        self.assertTrue(self.wait(lambda: not self.get("/api/ps").json["models"], 3))
        usage = self.ok("/v1/completions", {"prompt": prompt, "max_tokens": 1})["usage"]
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], 0.5 * usage["prompt_tokens"])


class SwappedModels(Contract):
    MODELS = (MODEL, MODEL.replace("story.gguf", "story-window.gguf"))
    FLAGS = ("--ctx", "1024", "--models", "1")

    def test_swapping_models_discards_no_prefixes(self):
        prompt = fresh_prompt(30)
        names = [model["id"] for model in self.get("/v1/models").json["data"]]
        self.assertEqual(len(names), 2)
        for name in names:
            self.ok("/v1/completions", {"model": name, "prompt": prompt, "max_tokens": 1})
        for name in names:
            usage = self.ok("/v1/completions", {"model": name, "prompt": prompt, "max_tokens": 1})["usage"]
            self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], 0.5 * usage["prompt_tokens"], name)


class OneOffs(Contract):
    """A main conversation, and many one-off calls that do not fit into the memory beside it."""

    STORE = False
    FLAGS = ("--ctx", "1024", "--memory-budget", "9M", "--sequences", "2")

    def test_one_off_calls_do_not_evict_the_conversation(self):
        # The cache learns from short answers that prompts come once, so the first turns do not count.
        system = {"role": "system", "content": fresh_prompt(50)}
        turns = [system]
        evicted = self.metrics()["kvcache_prefix_tokens_evicted_total"]
        prompts, cached = 0, 0
        turns_of_all, calls_between = (20, 8) if SLOW else (12, 4)
        for turn in range(turns_of_all):
            turns.append({"role": "user", "content": fresh_prompt(1)})
            answer = self.ok("/v1/chat/completions", {"messages": turns, "max_tokens": 20, "temperature": 0})
            if turn >= turns_of_all * 2 // 5:
                prompts += answer["usage"]["prompt_tokens"]
                cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            turns.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            for _ in range(calls_between):  # titles, summaries, sub-agents
                self.ok("/v1/chat/completions", chat(fresh_prompt(20), max_tokens=4))
        self.assertGreaterEqual(cached, 0.8 * prompts)
        self.assertGreater(self.metrics()["kvcache_prefix_tokens_evicted_total"], evicted, "nothing had to go")


class VolatileLines(Contract):
    """Lines that change on every call, with and without --volatile-lines."""

    STORE = False

    @classmethod
    def setUpClass(cls):
        handle, cls.rules = tempfile.mkstemp(prefix="kvcache-volatile-")
        cls.addClassCleanup(os.unlink, cls.rules)
        with os.fdopen(handle, "w") as file:
            file.write("remove x-anthropic-billing-header:*\nmove Current time: *\n")
        cls.FLAGS = ("--ctx", "1024", "--volatile-lines", cls.rules)
        super().setUpClass()

    def test_a_billing_header_costs_nothing(self):
        story = fresh_prompt(20)
        for call in range(3):
            system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.{call}; cch={call}{call};"},
                      {"type": "text", "text": story, "cache_control": {"type": "ephemeral"}}]
            body = {"system": system, "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 1}
            usage = self.ok("/v1/messages", body)["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_creation_input_tokens"], 1)

    def test_a_clock_moves_to_the_end(self):
        story = fresh_prompt(20)
        for minute in (10, 11):
            messages = [{"role": "system", "content": f"Current time: 12:{minute}\n{story}"},
                        {"role": "user", "content": "Go on."}]
            usage = self.ok("/v1/chat/completions", {"messages": messages, "max_tokens": 1})["usage"]
        self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 0.8 * usage["prompt_tokens"])
        prompt = self.ok("/apply-template", {"messages": messages})["prompt"]
        self.assertLess(prompt.index("Go on."), prompt.index("Current time: 12:11"))

    def test_the_first_differing_line_is_named(self):
        story = fresh_prompt(4)
        for hour in (3, 7):
            prompt = f"{story}\nIt is {hour} now.\n{story}"
            if hour == 7:
                self.assertEqual(self.ok("/probe", {"prompt": prompt})["difference"]["line"], "It is 7 now.")
            self.ok("/v1/completions", {"prompt": prompt, "max_tokens": 1})
        self.assertEqual(self.get("/state").json["ended"][-1]["differs_at"], "It is 7 now.")
