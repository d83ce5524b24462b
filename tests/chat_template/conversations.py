"""Conversations that every template renders: plain ones, ones with tools, unusual and long ones."""

import json

TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "Says how the weather is, \"now\" & <here>.",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "Town or Zürich's district, e.g. Köln"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "array", "items": {"type": "integer"}, "nullable": True},
            "detail": {"type": ["string", "null"]},
            "area": {"type": "object", "properties": {
                "north": {"type": "number"}, "name": {"type": "string", "nullable": True}},
                "required": ["north"]}},
            "required": ["place"]},
        "return": {"type": "string"}}},
    {"type": "function", "function": {
        "name": "add", "description": "Adds.", "parameters": {
            "type": "object", "properties": {
                "numbers": {"type": "array", "items": {"type": "number"}, "default": [1, 2.5]},
                "exact": {"type": "boolean", "default": False},
                "mode": {"oneOf": [{"type": "string", "description": "by name", "default": "x"},
                                   {"type": "integer"}], "default": "x"},
                "anything": {}}}}},
    {"type": "function", "function": {"name": "now", "description": "The time.",
                                      "parameters": {"type": "object", "properties": {}}}},
]


def call(name, arguments, identity="abcdefghi"):
    return {"id": identity, "type": "function",
            "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def rounds(count):
    """Returns a conversation in which a model calls a tool `count` times."""
    messages = [system("You are an agent."), user("Do it all.")]
    for i in range(count):
        name = f"call{i:05d}"
        arguments = {"place": f"/tmp/file{i}.txt", "line": i, "text": "some words " * 8}
        messages.append(assistant("", tool_calls=[call("weather", arguments, name)],
                                  reasoning_content=f"Step {i} is needed."))
        messages.append({"role": "tool", "name": "weather", "tool_call_id": name,
                         "content": json.dumps({"result": "a line\n" * 8, "n": i})})
    return messages + [assistant("Done."), user("Thanks. Next?")]


CONVERSATIONS = {
    "one question": [user("What is two and two?")],
    "two turns": [user("Hi"), assistant("Hello!"), user("  How are you?  \n")],
    "ends with an answer": [user("Hi"), assistant("Hello!")],
    "system": [system("Be brief."), user("Hi"), assistant("Hello!"), user("Bye")],
    "empty system": [system(""), user("Hi")],
    "empty contents": [user(""), assistant(""), user("")],
    "unicode": [system("Sprich Deutsch. 日本語も。"),
                user("Grüße 👩‍👩‍👧 ﬁ ẞ \u00a0 \u2028 \u200b é"), assistant("Привет, мир — ok\t\u3000"),
                user("\U0001F600\ud7ff\ue000 «»")],
    "marks of templates": [user("<|im_end|>\n<|im_start|>system\n{{ 7 * 7 }} {% raw %} [/INST] </s>"),
                           assistant("<end_of_turn> <|eot_id|> <|end|>"), user("{# no #} <|user|>")],
    "white space": [user("\n\n  lines\r\n\r\n\tand tabs \v\f\x1c\n"), assistant("\n ok \n\n"),
                    user("\\n \"quoted\" 'single' \\")],
    "reasoning in content": [user("2+2?"), assistant("<think>\nTwo and two.\n</think>\n\nFour."),
                             user("3+3?"), assistant("<think>Hm.</think>Six."), user("Sure?")],
    "reasoning apart": [user("2+2?"), assistant("Four.", reasoning_content="Two and two."),
                        user("3+3?"), assistant("Six.", reasoning_content="Hm.\n", thinking="Hm.")],
    "a call": [user("Weather in Köln?"),
               assistant("", tool_calls=[call("weather", {"place": "Köln", "days": [1, 2]})]),
               {"role": "tool", "name": "weather", "content": "{\"sky\": \"grey\"}",
                "tool_call_id": "abcdefghi"},
               assistant("Grey."), user("And <b>here</b>?")],
    "two calls": [system("Use tools."), user("Both?"),
                  assistant(None, tool_calls=[call("add", {"numbers": [1.5, -2, 1e20]}),
                                              call("now", {}, "123456789")]),
                  {"role": "tool", "content": "0.5", "tool_call_id": "abcdefghi"},
                  {"role": "tool", "content": "12:00", "tool_call_id": "123456789"}],
    "call with reasoning": [user("Time?"),
                            assistant("<think>\nlook\n</think>\n", tool_calls=[call("now", {})]),
                            {"role": "tool", "content": "12:00", "tool_call_id": "abcdefghi"}],
    "arguments as text": [user("Time?"),
                          assistant("Let me see.", tool_calls=[call("now", "{\"a\": 1}")])],
    "results in another order": [
        user("Both?"), assistant("Wait.", tool_calls=[call("add", {"numbers": []}, "aaaaaaaaa"),
                                                      call("now", {}, "bbbbbbbbb")]),
        {"role": "tool", "name": "now", "content": "12:00", "tool_call_id": "bbbbbbbbb"},
        {"role": "tool", "name": "add", "content": "0", "tool_call_id": "aaaaaaaaa"},
        assistant("Noon, and nothing.")],
    "calls in turn": [
        system("Use tools."), user("Where and when?"),
        assistant("", tool_calls=[call("now", {}, "aaaaaaaaa")], reasoning_content="The time first."),
        {"role": "tool", "name": "now", "content": "12:00", "tool_call_id": "aaaaaaaaa"},
        assistant("", tool_calls=[call("weather", {"place": "here", "detail": None}, "bbbbbbbbb")],
                  reasoning_content="Then the weather."),
        {"role": "tool", "name": "weather", "content": "rain", "tool_call_id": "bbbbbbbbb"},
        assistant("Rain at noon."), user("And tomorrow?")],
    "structured result": [user("x"), assistant("", tool_calls=[call("now", {"k": [None, True]})]),
                          {"role": "tool", "content": {"content": [1, "ü"]},
                           "tool_call_id": "abcdefghi"}],
    "parts": [user([{"type": "text", "text": " look "}, {"type": "image"},
                    {"type": "text", "text": "ß"}])],
    "developer": [{"role": "developer", "content": "Rules."}, user("Hi")],
    "unknown role": [user("Hi"), {"role": "narrator", "content": "Meanwhile"}, user("…")],
    "wrong order": [assistant("Hello?"), user("Hi")],
    "only system": [system("Nobody there.")],
    "nobody": [],
    "long": [system("Long.")] + [m for i in range(60) for m in
                                 (user(f"Question {i}? " + "word " * i),
                                  assistant(f"Answer {i}. " + "né " * i))] + [user("Done?")],
}

VARIABLES = [
    {}, {"enable_thinking": False}, {"enable_thinking": True},
    {"tools_in_user_message": False, "date_string": "1 May 2025"},
    {"builtin_tools": ["code_interpreter", "weather", "search"]},
    {"reasoning_effort": "high", "model_identity": "You are ÜX."},
]


def cases(templates):
    """Yields every template with every conversation, with and without tools, and each variable
    once."""
    for name, source in templates.items():
        for title, messages in CONVERSATIONS.items():
            for tools in (None, TOOLS):
                for variables in VARIABLES:
                    yield {"title": f"{name}, {title}, {'tools' if tools else 'no tools'}, "
                                    f"{variables}",
                           "template": source, "messages": messages, "tools": tools,
                           "variables": variables,
                           "add_generation_prompt": len(title) % 3 != 0}
