"""The four APIs of `kvcache serve`: how each asks, and what it answers, whole and as a stream.

An answer is {"thoughts", "text", "calls": [(name, arguments)], "ids", "end", "message"}; `message` is what a client
sends back. Streams are checked on the way: what comes when, and in which pieces.
"""

import http.client
import json


def function(tool):
    return {"type": "function", "function": tool}


def answer(thoughts="", text="", calls=(), ids=(), end=None, message=None, pieces=0):
    return {"thoughts": thoughts.strip(), "text": text.strip(), "calls": list(calls), "ids": list(ids), "end": end,
            "message": message, "pieces": pieces}


def arguments_of(text):
    """The arguments of a call, or their text if a limit cut it off."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class Client:
    def __init__(self, port):
        self.port = port

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        assert reply.status == 200, f"{path}: {reply.status} {text}"
        return text

    def json(self, path, body):
        return json.loads(self.post(path, body))

    def events(self, path, body):
        lines = self.post(path, {**body, "stream": True}).splitlines()
        data = [line.removeprefix("data: ") for line in lines if line.startswith(("data: ", "{"))]
        return [json.loads(line) for line in data if line != "[DONE]"]


class OpenAi:
    path = "/v1/chat/completions"
    length = "length"

    @staticmethod
    def request(messages, tools, limit, forced):
        body = {"messages": messages, "max_tokens": limit}
        if tools:
            body["tools"] = [function(tool) for tool in tools]
        return {**body, "tool_choice": "required", "parallel_tool_calls": False} if forced else body

    @staticmethod
    def whole(reply):
        choice = reply["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls", [])
        return answer(message.get("reasoning_content", ""), message["content"] or "",
                      [(c["function"]["name"], arguments_of(c["function"]["arguments"])) for c in calls],
                      [c["id"] for c in calls], choice["finish_reason"], [message])

    @staticmethod
    def streamed(events):
        message = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
        end, pieces = None, 0
        for event in events:
            delta = event["choices"][0]["delta"]
            for key in ("content", "reasoning_content"):
                message[key] += delta.get(key) or ""
            assert delta.get("tool_calls") != []
            for part in delta.get("tool_calls", []):
                if part["index"] == len(message["tool_calls"]):
                    assert part["type"] == "function" and part["id"] and part["function"]["name"]
                    message["tool_calls"].append({**part, "function": dict(part["function"])})
                    continue
                assert part["index"] == len(message["tool_calls"]) - 1
                assert set(part) == {"index", "function"} and set(part["function"]) == {"arguments"}
                message["tool_calls"][-1]["function"]["arguments"] += part["function"]["arguments"]
                pieces += 1
            end = event["choices"][0]["finish_reason"] or end
        result = OpenAi.whole({"choices": [{"message": message, "finish_reason": end}]})
        return {**result, "pieces": pieces}

    @staticmethod
    def results(given, texts):
        return [{"role": "tool", "tool_call_id": id, "content": text} for id, text in zip(given["ids"], texts)]


class Anthropic:
    path = "/v1/messages"
    length = "max_tokens"

    @staticmethod
    def request(messages, tools, limit, forced):
        body = {"messages": messages, "max_tokens": limit}
        if tools:
            body["tools"] = [{"name": t["name"], "description": t["description"], "input_schema": t["parameters"]}
                             for t in tools]
        return {**body, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}} if forced else body

    @staticmethod
    def whole(reply):
        blocks = reply["content"]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        return answer("".join(block.get("thinking", "") for block in blocks),
                      "".join(block.get("text", "") for block in blocks), [(c["name"], c["input"]) for c in calls],
                      [c["id"] for c in calls], reply["stop_reason"], [{"role": "assistant", "content": blocks}])

    @staticmethod
    def streamed(events):
        blocks, json_text, open_block, end, pieces = [], "", False, None, 0
        for event in events:
            kind = event["type"]
            if kind == "content_block_start":
                assert not open_block and event["index"] == len(blocks)
                blocks.append(dict(event["content_block"]))
                open_block, json_text = True, ""
            elif kind == "content_block_delta":
                assert open_block and event["index"] == len(blocks) - 1
                delta = event["delta"]
                json_text += delta.get("partial_json", "")
                pieces += "partial_json" in delta
                for key in ("text", "thinking", "signature"):
                    if key in delta:
                        blocks[-1][key] += delta[key]
            elif kind == "content_block_stop":
                open_block = False
                if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = json.loads(json_text or "{}")
            elif kind == "message_delta":
                end = event["delta"]["stop_reason"]
        assert not open_block
        return {**Anthropic.whole({"content": blocks, "stop_reason": end}), "pieces": pieces}

    @staticmethod
    def results(given, texts):
        return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}
                                             for id, text in zip(given["ids"], texts)]}]


class Responses:
    path = "/v1/responses"
    length = "incomplete"

    @staticmethod
    def request(messages, tools, limit, forced):
        body = {"input": messages, "max_output_tokens": limit, "store": False,
                "include": ["reasoning.encrypted_content"]}
        if tools:
            body["tools"] = [{"type": "function", **tool} for tool in tools]
        return {**body, "tool_choice": "required", "parallel_tool_calls": False} if forced else body

    @staticmethod
    def whole(reply):
        items = reply["output"]
        calls = [item for item in items if item["type"] == "function_call"]
        words = {kind: "".join(part["text"] for item in items if item["type"] == kind for part in item["content"])
                 for kind in ("reasoning", "message")}
        # A client that keeps nothing gives thoughts back sealed.
        back = [{key: value for key, value in item.items() if item["type"] != "reasoning" or key != "content"}
                for item in items]
        return answer(words["reasoning"], words["message"], [(c["name"], arguments_of(c["arguments"])) for c in calls],
                      [c["call_id"] for c in calls], reply["status"], back)

    @staticmethod
    def streamed(events):
        items, text, pieces = [], "", 0
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        for event in events:
            kind = event["type"]
            if kind == "response.output_item.added":
                text = ""
                assert event["output_index"] == len(items)
                assert event["item"].get("arguments", "") == "" and event["item"].get("name", "?")
            elif kind.endswith("arguments.delta"):
                text += event["delta"]
                pieces += 1
            elif kind.endswith("arguments.done"):
                assert event["arguments"] == text
            elif kind == "response.output_item.done":
                items.append(event["item"])
        reply = events[-1]["response"]
        assert reply["output"] == items
        return {**Responses.whole(reply), "pieces": pieces}

    @staticmethod
    def results(given, texts):
        return [{"type": "function_call_output", "call_id": id, "output": text}
                for id, text in zip(given["ids"], texts)]


class Ollama:
    path = "/api/chat"
    length = "length"

    @staticmethod
    def request(messages, tools, limit, forced):
        assert not forced
        body = {"messages": messages, "options": {"num_predict": limit, "temperature": 0}, "stream": False}
        return {**body, "tools": [function(tool) for tool in tools]} if tools else body

    @staticmethod
    def whole(reply):
        message = reply["message"]
        calls = message.get("tool_calls", [])
        return answer(message.get("thinking", ""), message["content"],
                      [(c["function"]["name"], c["function"]["arguments"]) for c in calls],
                      [c["id"] for c in calls], reply["done_reason"], [message])

    @staticmethod
    def streamed(events):
        message = {"role": "assistant", "content": "", "thinking": "", "tool_calls": []}
        for event in events:
            assert event["message"].get("tool_calls") != []
            for key in message:
                if key != "role":
                    message[key] += event["message"].get(key, type(message[key])())
        return Ollama.whole({"message": message, "done_reason": events[-1]["done_reason"]})

    @staticmethod
    def results(given, texts):
        # Clients of Ollama name the tool, and not the call.
        return [{"role": "tool", "tool_name": name, "content": text} for (name, _), text in zip(given["calls"], texts)]


APIS = [OpenAi, Anthropic, Responses, Ollama]
