"""Schemas: enforced or refused, for each keyword apart, streamed or not, on every API."""

import json

from contract.client import STORY, Contract, chat, events_text

# Keyword by keyword: a schema, and whether a value is valid.
KEYWORDS = {
    "type null": ({"type": "null"}, lambda v: v is None),
    "type list": ({"type": ["boolean", "null"]}, lambda v: v is None or isinstance(v, bool)),
    "enum": ({"enum": ["a", 1, None, {"b": [2]}]}, lambda v: v in ["a", 1, None, {"b": [2]}]),
    "const": ({"const": "x y"}, lambda v: v == "x y"),
    "minLength": ({"type": "string", "minLength": 3, "maxLength": 5}, lambda v: 3 <= len(v) <= 5),
    "pattern": ({"type": "string", "pattern": "^[a-c]{2}$"}, lambda v: len(v) == 2 and set(v) <= set("abc")),
    "pattern and lengths": ({"type": "string", "pattern": "^[ab]+$", "minLength": 2, "maxLength": 4},
                            lambda v: 2 <= len(v) <= 4 and set(v) <= set("ab")),
    "format": ({"type": "string", "format": "date"}, lambda v: len(v) == 10),
    "minimum": ({"type": "integer", "minimum": -3, "maximum": 12}, lambda v: -3 <= v <= 12),
    "exclusive": ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, lambda v: v in (1, 2)),
    "fractions": ({"type": "number", "minimum": 0.5, "maximum": 1.25}, lambda v: 0.5 <= v <= 1.25),
    "multipleOf": ({"type": "integer", "multipleOf": 5, "minimum": 10, "maximum": 30}, lambda v: v % 5 == 0),
    "required": ({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}},
                  "required": ["a"], "additionalProperties": False}, lambda v: "a" in v and set(v) <= {"a", "b"}),
    "additional": ({"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False,
                    "required": ["a"]}, lambda v: set(v) == {"a"}),
    "items": ({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
              lambda v: 1 <= len(v) <= 3 and all(isinstance(i, bool) for i in v)),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "boolean"}, {"const": 2}], "minItems": 2,
                     "maxItems": 2}, lambda v: isinstance(v[0], bool) and v[1] == 2),
    "anyOf": ({"anyOf": [{"const": 1}, {"const": "b"}]}, lambda v: v in (1, "b")),
    "oneOf": ({"oneOf": [{"type": "boolean"}, {"type": "null"}]}, lambda v: v is None or isinstance(v, bool)),
    "allOf": ({"allOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
                         {"type": "object", "properties": {"b": {"enum": [1, 2]}}, "required": ["b"], "maxProperties": 2}]},
              lambda v: isinstance(v["a"], bool) and v["b"] in (1, 2)),
    "$ref": ({"$ref": "#/$defs/x", "$defs": {"x": {"enum": [7, 8]}}}, lambda v: v in (7, 8)),
    "uniqueItems": ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, lambda v: len(set(v)) == len(v)),
    "not": ({"type": ["string", "null"], "not": {"type": "string"}}, lambda v: v is None),
    "if": ({"type": ["string", "null"], "if": {"type": "string"}, "then": {"maxLength": 2}, "else": {"type": "null"}},
           lambda v: v is None or len(v) <= 2),
    "contains": ({"type": "array", "contains": {"const": 1}}, lambda v: 1 in v),
    "patternProperties": ({"type": "object", "patternProperties": {"^a$": {"type": "null"}}, "additionalProperties": False,
                           "maxProperties": 1}, lambda v: v in ({}, {"a": None})),
    "propertyNames": ({"type": "object", "propertyNames": {"maxLength": 1}, "maxProperties": 1,
                       "additionalProperties": {"type": "null"}}, lambda v: all(len(k) < 2 for k in v)),
    "dependentRequired": ({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
                            "additionalProperties": False, "dependentRequired": {"a": ["b"]}},
                          lambda v: "a" not in v or "b" in v),
    "minProperties": ({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
                       "additionalProperties": False, "minProperties": 1}, lambda v: len(v) >= 1),
}
REFUSED = {"uniqueItems", "contains"}
INVALID = [{"type": "strin"}, {"type": 1}, {"enum": 1}, {"enum": []}, {"required": "a"}, {"properties": 1},
           {"type": "object", "properties": {"a": 1}}, {"minLength": -1, "type": "string"},
           {"pattern": 1}, {"pattern": "(", "type": "string"}, {"$ref": "#/nowhere"}, {"anyOf": []}, {"anyOf": 1},
           {"minimum": "x", "type": "number"}, {"items": 1, "type": "array"}, {"multipleOf": 0, "type": "number"}]


class Schemas(Contract):
    STORE = False

    def ask(self, schema, stream, api):
        named = {"name": "answer", "schema": schema, "strict": True}
        body = chat(STORY, max_tokens=300, temperature=1, seed=3, stream=stream)
        if api == "chat":
            return "/v1/chat/completions", {**body, "response_format": {"type": "json_schema", "json_schema": named}}
        if api == "responses":
            return "/v1/responses", {"input": STORY, "max_output_tokens": 300, "seed": 3, "stream": stream,
                                     "text": {"format": {"type": "json_schema", **named}}}
        if api == "messages":
            return "/v1/messages", {**body, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
        body = {"messages": body["messages"], "format": schema, "stream": stream,
                "options": {"num_predict": 300, "seed": 3, "temperature": 1}}
        return "/api/chat", body

    def text_of(self, answer, stream, api):
        """Returns the text, and whether it ended by itself."""
        if api == "chat":
            if not stream:
                choice = answer.json["choices"][0]
                return choice["message"]["content"], choice["finish_reason"] == "stop"
            return events_text(answer.events), answer.events[-1]["choices"][0]["finish_reason"] == "stop"
        if api == "responses":
            whole = answer.events[-1]["response"] if stream else answer.json
            text = whole["output"][0]["content"][0]["text"]
            if stream:
                deltas = [e["delta"] for e in answer.events if e["type"] == "response.output_text.delta"]
                self.assertEqual("".join(deltas), text)
            return text, whole["status"] == "completed"
        if api == "messages":
            if not stream:
                return answer.json["content"][0]["text"], answer.json["stop_reason"] == "end_turn"
            deltas = [e["delta"] for e in answer.events if "delta" in e]
            return "".join(d.get("text", "") for d in deltas), deltas[-1]["stop_reason"] == "end_turn"
        lines = answer.lines
        return "".join(line["message"]["content"] for line in lines), lines[-1]["done_reason"] == "stop"

    def test_each_keyword_is_enforced_or_refused(self):
        enforced = {}
        for name, (schema, valid) in KEYWORDS.items():
            for api in ("chat", "responses", "messages", "ollama"):
                for stream in (False, True):
                    with self.subTest(name, api=api, stream=stream):
                        path, body = self.ask(schema, stream, api)
                        answer = self.post(path, body)
                        self.assertIn(answer.status, (200, 400), answer)
                        self.assertEqual(enforced.setdefault(name, answer.status), answer.status)
                        if answer.status == 400:
                            continue
                        text, ended = self.text_of(answer, stream, api)
                        self.assertTrue(ended, text)
                        self.assertTrue(valid(json.loads(text)), text)
        self.assertEqual({name for name, status in enforced.items() if status == 400}, REFUSED)

    def test_invalid_schemas_are_400(self):
        for schema in INVALID:
            for api in ("chat", "responses", "messages", "ollama"):
                path, body = self.ask(schema, True, api)
                answer = self.post(path, body)
                self.assertEqual(answer.status, 400, (schema, api, answer))
        for form in [{"type": "json_schema"}, {"type": "x"}, {"type": "json_schema", "json_schema": {}}]:
            self.assertEqual(self.post("/v1/chat/completions", chat("Hi", response_format=form)).status, 400, form)

    def test_enums_and_booleans_end_by_themselves(self):
        schema = {"type": "object", "required": ["color", "big", "kind"],
                  "properties": {"color": {"enum": ["red", "green"]}, "big": {"type": "boolean"},
                                 "kind": {"type": "string", "enum": ["ball", "kite", "boat"]}}}
        for seed in range(100):
            path, body = self.ask(schema, False, "chat")
            choice = self.ok(path, {**body, "seed": seed})["choices"][0]
            self.assertEqual(choice["finish_reason"], "stop")
            value = json.loads(choice["message"]["content"])
            self.assertEqual(set(value), {"color", "big", "kind"})

    def test_json_object(self):
        body = chat(STORY, response_format={"type": "json_object"}, max_tokens=300)
        choice = self.ok("/v1/chat/completions", body)["choices"][0]
        if choice["finish_reason"] == "stop":
            self.assertIsInstance(json.loads(choice["message"]["content"]), dict)
