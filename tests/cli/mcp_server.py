#!/usr/bin/env python3
"""An MCP server for tests. Usage: mcp_server.py [FAULT]

Tools: add (a, b) → their sum; say (text) → the text; fail () → an error; big () → 100,000 bytes. Each page of the
list has two of them.

FAULT: dies (at the start), mute (answers nothing), old (an unknown revision), chatty (prints lines that are no
messages, and asks the client), leaves (at the first call), stays (after its input has ended).
"""

import json
import os
import sys
import time

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
           "required": ["a", "b"]}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTHING = {"type": "object", "properties": {}}
TOOLS = [{"name": "add", "description": "Adds two numbers.", "inputSchema": NUMBERS},
         {"name": "say", "description": "Repeats a text.", "inputSchema": TEXT},
         {"name": "fail", "description": "Fails.", "inputSchema": NOTHING},
         {"name": "big", "description": "Says much.", "inputSchema": NOTHING}]


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(value, is_error=False):
    return {"content": [{"type": "text", "text": value}], "isError": is_error}


def call(name, arguments):
    if FAULT == "leaves":
        print("the disk is full", file=sys.stderr, flush=True)
        sys.exit(3)
    if name == "add":
        return text(str(arguments["a"] + arguments["b"]))
    if name == "say":
        return text(arguments["text"])
    if name == "big":
        return text("x" * 100_000)
    return text("it cannot be done", True)


def answer(method, params):
    if method == "initialize":
        revision = "1999-01-01" if FAULT == "old" else params["protocolVersion"]
        return {"protocolVersion": revision, "capabilities": {"tools": {}},
                "serverInfo": {"name": "test", "version": "1"}}
    if method == "tools/list":
        first = int(params.get("cursor", 0))
        page = {"tools": TOOLS[first:first + 2]}
        return page if first + 2 >= len(TOOLS) else {**page, "nextCursor": str(first + 2)}
    if method == "tools/call":
        return call(params["name"], params["arguments"])
    return None


def main():
    if FAULT == "dies":
        print("no such account", file=sys.stderr)
        sys.exit(1)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message or FAULT == "mute":
            continue
        if FAULT == "chatty":
            print("listening …", flush=True)
            send({"method": "notifications/message", "params": {"data": "hello"}})
            send({"id": "mine", "method": "ping"})
            send({"id": 7, "method": "roots/list"})
        result = answer(message["method"], message.get("params", {}))
        if result is None:
            send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
        else:
            send({"id": message["id"], "result": result})
    if FAULT == "stays":
        time.sleep(600)
    if log := os.environ.get("MCP_TEST_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write("ended\n")


if __name__ == "__main__":
    main()
