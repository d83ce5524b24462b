#!/usr/bin/env python3
"""An MCP server for tests. Usage: mcp_server.py [FAULT]

Tools: add (a, b) → their sum; say (text) → the text; fail () → an error; big () → 100,000 bytes; table () → a structured
result only; parts () → parts that are no text; slow () → no answer; a.b () → its own name. Each page of the
list has two of them. The file that MCP_TEST_LOG names gets a line for each message, and "ended".

FAULT: dies (at the start), mute (answers nothing), old (an unknown revision), chatty (prints lines that are no
messages, and asks the client), leaves (at the first call), stays (after its input has ended, and after SIGTERM), huge
(a line of 17 MiB before each answer to a call), broken (its answers to calls are no JSON), batch (answers in arrays),
bare (has no tools), endless (pages of tools), nameless (a tool without a name), listless (no list of tools), deaf
(reads nothing after the start), unknown (answers with an error and no id), flood (at the first call: asks without end
and reads nothing), sluggish (pages of tools without end, five a second), parent (leaves a process that SIGTERM does not
end). The log of the last one, and of stays, has the line "pid N", with the process that stays.
"""

import json
import os
import signal
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
         {"name": "big", "description": "Says much.", "inputSchema": NOTHING},
         {"name": "table", "description": "Has a structured result.", "inputSchema": NOTHING},
         {"name": "parts", "description": "Has parts that are no text.", "inputSchema": None},
         {"name": "slow", "description": "Never answers.", "inputSchema": NOTHING},
         {"name": "a.b", "description": "Has a dot.", "inputSchema": NOTHING},
         {"name": "task", "inputSchema": NOTHING, "execution": {"taskSupport": "required"}}]
PARTS = [{"type": "image", "data": "AAAA", "mimeType": "image/png"},
         {"type": "resource_link", "uri": "file:///x", "name": "x"},
         {"type": "resource", "resource": {"uri": "file:///y", "text": "why"}}, 7]


def log(line):
    if path := os.environ.get("MCP_TEST_LOG"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def send(message):
    message = {"jsonrpc": "2.0", **message}
    print(json.dumps([message] if FAULT == "batch" else message), flush=True)


def text(value, is_error=False):
    return {"content": [{"type": "text", "text": value}], "isError": is_error}


def call(name, arguments):
    if FAULT == "leaves":
        print("first words\nthe disk is full", file=sys.stderr, flush=True)
        sys.exit(3)
    while FAULT == "flood":
        sys.stdout.write('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n' * 1000)
    if FAULT == "huge":
        print("x" * (17 << 20), flush=True)
    if FAULT == "broken":
        print('{"jsonrpc": "2.0", "id": 3, "result": {', flush=True)
    results = {"say": lambda: text(arguments["text"]), "big": lambda: text("x" * 100_000),
               "table": lambda: {"content": [], "structuredContent": {"rows": [1, 2]}},
               "parts": lambda: {"content": PARTS}, "a.b": lambda: text(name),
               "add": lambda: text(str(arguments["a"] + arguments["b"]))}
    return results.get(name, lambda: text("it cannot be done", True))()


def tool_list(params):
    if FAULT == "listless":
        return {"tools": "none"}
    if FAULT == "nameless":
        return {"tools": [{"description": "?"}]}
    if FAULT == "sluggish":
        time.sleep(0.2)
    if FAULT in ("endless", "sluggish"):
        return {"tools": [], "nextCursor": "more"}
    first = int(params.get("cursor", 0))
    page = {"tools": TOOLS[first:first + 2]}
    return page if first + 2 >= len(TOOLS) else {**page, "nextCursor": str(first + 2)}


def answer(method, params):
    if method == "initialize":
        revision = "1999-01-01" if FAULT == "old" else params["protocolVersion"]
        return {"protocolVersion": revision, "capabilities": {} if FAULT == "bare" else {"tools": {}},
                "serverInfo": {"name": "test", "version": "1"}}
    if method == "tools/list" and FAULT != "bare":
        return tool_list(params)
    if method == "tools/call":
        return call(params["name"], params["arguments"])
    return None


def handle(message):
    method = message.get("method", "answer")
    log(method + (" " + message["params"]["name"] if method == "tools/call" else ""))
    slow = message.get("params", {}).get("name") == "slow"
    if "id" not in message or "method" not in message or FAULT == "mute" or slow:
        return
    if FAULT == "chatty":
        print("listening …", flush=True)
        send({"method": "notifications/message", "params": {"data": "hello"}})
        send({"id": "mine", "method": "ping"})
        send({"id": 7, "method": "roots/list"})
    if FAULT == "unknown":
        send({"id": None, "error": {"code": -32700, "message": "no such language"}})
    try:
        result = answer(method, message.get("params", {}))
    except (KeyError, TypeError) as error:
        send({"id": message["id"], "error": {"code": -32602, "message": f"wrong arguments: {error}"}})
        return
    if result is None:
        send({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
    else:
        send({"id": message["id"], "result": result})


def main():
    if FAULT == "dies":
        print("no such account", file=sys.stderr)
        sys.exit(1)
    if FAULT in ("stays", "parent"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pid = os.fork() if FAULT == "parent" else os.getpid()
        if pid == 0:
            time.sleep(600)
        log(f"pid {pid}")
    for line in sys.stdin:
        handle(json.loads(line))
        if FAULT == "deaf" and '"cursor": "8"' in line.replace('":"', '": "'):
            time.sleep(600)
    if FAULT == "stays":
        log("stays")
        time.sleep(600)
    log("ended")


if __name__ == "__main__":
    main()
