"""Drives models that say scripts, one for each family, through all APIs and the terminal.

Usage: dialects_test.py KVCACHE SPOKEN_MODEL TABLE.md [--write] [FAMILY…]

Each family has three models: one says its answer in one token, one byte by byte, and one with the markers as control
tokens, as the family's vocabulary has them. What was seen must be what TABLE.md says; --write writes it.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback

from apis import APIS, Anthropic, Client, OpenAi, Ollama
from families import CALLS, CITY, FAMILIES, FINAL, TEXT, THOUGHTS, TOOLS

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "serve"))
from server_process import Server  # noqa: E402

MODES = ["whole", "bytes", "tokens"]
FORCED = [{**TOOLS[0], "parameters": {"type": "object", "properties": {"city": CITY}, "required": ["city"],
                                      "additionalProperties": False}}]
VALID = [{"city": city} for city in CITY["enum"]]
COLUMNS = ["offered", "parsed", "streamed", "cut off", "forced", "thoughts", "second turn", "terminal"]
# In the result of a tool or in a prompt, it selects the final answer.
SELECT = "~"
HEAD = """# Dialects

`tests/dialects` makes this page. For each family it writes a small template and three models that say a script: in one
token, byte by byte, and with the markers as control tokens. The script has thoughts, a text and two calls (one, where
the family writes one). Each model answers through OpenAI's chat and responses, Anthropic's messages and Ollama's chat.

| column | |
|---|---|
| offered | `/api/show` lists `tools` |
| parsed | whole answers have the thoughts, the text and the calls, on all APIs |
| streamed | so have streams, in the order that each API describes; arguments come in pieces |
| cut off | at a limit of tokens in the middle of the arguments, each API says so, and arguments are what came (OpenAI) or an object |
| forced | `tool_choice` makes a valid call |
| thoughts | they are apart from the text in the final answer too |
| second turn | calls and results that come back are what the template writes for the model, and the model goes on |
| terminal | `kvcache run` has the text alone on standard output, thoughts on a terminal, and calls beside it; so has `--json` |

| family | dialect | {columns} |
|---|---|{rules}
"""


def pieces(family, text, mode):
    """The tokens that say a text."""
    if mode == "whole":
        return [text]
    if mode == "bytes":
        return list(text.encode())
    tokens = [text]
    for marker in family.markers:
        tokens = [part for token in tokens for part in
                  ([token] if token in family.markers else split(token, marker))]
    return [part for token in tokens for part in
            ([token] if token in family.markers else chunks(token))]


def split(text, marker):
    parts = text.split(marker)
    return [part for i, piece in enumerate(parts) for part in ([marker] if i else []) + [piece] if part]


def chunks(text, size=5):
    return [text[i:i + size] for i in range(0, len(text), size)]


def write_model(program, path, family, mode):
    controls = list(family.ends) + (list(family.markers) if mode == "tokens" else [])
    scripts = [{"select": "", "tokens": pieces(family, family.said(family.answer()), mode) + [family.ends[0]]},
               {"select": SELECT, "tokens": pieces(family, family.said(family.final()), mode) + [family.ends[-1]]}]
    description = {"template": family.chat_template(), "controls": list(dict.fromkeys(controls)),
                   "ends": list(family.ends), "scripts": scripts}
    subprocess.run([program, path], input=json.dumps(description), text=True, check=True)


class Check:
    def __init__(self, family, client):
        self.family, self.client = family, client
        self.calls = CALLS[:1 + ("get_weather_time" in family.calls)]
        self.thoughts = THOUGHTS if family.think else ""

    def ask(self, api, mode, messages, stream=False, tools=TOOLS, limit=2000, forced=False):
        body = {"model": mode, "temperature": 0, **api.request(messages, tools, limit, forced)}
        if stream:
            return api.streamed(self.client.events(api.path, body))
        return api.whole(self.client.json(api.path, body))

    question = [{"role": "user", "content": "How is the weather?"}]

    def expect(self, got):
        text = "" if self.family.bare else TEXT
        assert got["thoughts"] == self.thoughts, got
        assert got["text"] == text, got
        assert got["calls"] == self.calls, got

    def offered(self):
        for mode in MODES:
            shown = self.client.json("/api/show", {"model": mode})
            assert "tools" in shown["capabilities"] and shown["dialect"] == self.family.dialect, shown

    def parsed(self):
        for api in APIS:
            for mode in MODES:
                self.expect(self.ask(api, mode, self.question))

    def streamed(self):
        for api in APIS:
            for mode in MODES:
                got = self.ask(api, mode, self.question, stream=True)
                self.expect(got)
                assert api is Ollama or mode == "whole" or got["pieces"] > 2, got

    def cut_off(self):
        """Every byte of the last arguments is a token, and each has a step before it."""
        answer = self.family.said(self.family.answer())
        limit = 2 * (len(answer[:answer.index("Paris") + 3].encode()))
        for api in APIS:
            for stream in (False, True):
                got = self.ask(api, "bytes", self.question, stream, limit=limit)
                assert got["end"] == api.length, got
                name, arguments = got["calls"][0]
                assert len(got["calls"]) == 1 and name == "get_weather", got
                if api in (Anthropic, Ollama):
                    assert arguments == {"city": "Par"}, got
                else:
                    assert arguments.rstrip('"}').replace(" ", "") == '{"city":"Par', got

    def forced(self):
        for api in APIS:
            for mode in MODES:
                for stream in (False, True):
                    if api is Ollama:
                        continue
                    got = self.ask(api, mode, self.question, stream, FORCED, forced=True)
                    assert got["calls"], got
                    for name, arguments in got["calls"]:
                        assert name == "get_weather" and arguments in VALID, got

    def in_thoughts(self):
        for api in APIS:
            for mode in MODES:
                for stream in (False, True):
                    got = self.ask(api, mode, [{"role": "user", "content": "Weather " + SELECT}], stream, tools=None)
                    assert (got["thoughts"], got["text"], got["calls"]) == (self.thoughts, FINAL, []), got

    def second_turn(self):
        texts = ["22 degrees", "noon " + SELECT][-len(self.calls):]
        prompts = set()
        for api in APIS:
            for mode in MODES:
                first = self.ask(api, mode, self.question)
                messages = self.question + first["message"] + api.results(first, texts)
                second = self.ask(api, mode, messages)
                assert (second["text"], second["calls"]) == (FINAL, []), second
                if api is OpenAi:
                    prompts.add(self.prompt(mode, messages))
        self.other_ids(texts)
        dense = "".join(self.family.answer().split())
        for prompt in prompts:
            assert dense in "".join(prompt.split()), prompt
            assert all(text in prompt for text in texts), prompt

    def other_ids(self, texts):
        """A conversation may come from another server, whose ids are longer than some templates allow."""
        first = self.ask(OpenAi, "tokens", self.question)
        first["ids"] = [f"call_of_another_server_{i}" for i in range(len(self.calls))]
        for call, id in zip(first["message"][0]["tool_calls"], first["ids"]):
            call["id"] = id
        messages = self.question + first["message"] + OpenAi.results(first, texts)
        assert self.ask(OpenAi, "tokens", messages)["text"] == FINAL
        if "c.id" not in self.family.template:
            return
        assert "another_server" not in self.prompt("tokens", messages)

    def prompt(self, mode, messages):
        body = {"model": mode, "messages": messages, "tools": [{"type": "function", "function": t} for t in TOOLS]}
        return self.client.json("/apply-template", body)["prompt"]

    def terminal(self, folder):
        tools = folder / "tools.json"
        tools.write_text(json.dumps([{"type": "function", "function": each} for each in TOOLS]))
        for mode in MODES:
            model = folder / f"{mode}.gguf"
            done = run(model, "Weather " + SELECT)
            assert (done.stdout.strip(), done.stderr) == (FINAL, ""), done
            report = json.loads(run(model, "How is the weather?", "--tools", str(tools), "--json").stdout)
            calls = [(call["name"], call["arguments"]) for call in report.get("calls", [])]
            self.expect({"thoughts": report.get("thoughts", ""), "text": report["text"].strip(), "calls": calls})
            shown = run(model, "How is the weather?", "--tools", str(tools))
            lines = [f"▸ {name} " + json.dumps(arguments, separators=(",", ":")) for name, arguments in self.calls]
            assert shown.stderr.splitlines() == lines, shown
            if not self.thoughts:
                continue
            assert "\x1b[2m" + self.thoughts[0] in on_terminal(model), on_terminal(model)
            plain = on_terminal(model, NO_COLOR="1")
            assert self.thoughts in plain and "\x1b[2m" not in plain, plain


def command(model, prompt, *flags):
    return [Server.program, "run", str(model), "-p", prompt, "--temp", "0", "--store", "none", *flags]


def run(model, prompt, *flags):
    done = subprocess.run(command(model, prompt, *flags), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def on_terminal(model, **environment):
    """What standard error shows if it is a terminal."""
    ours, theirs = os.openpty()
    done = subprocess.Popen(command(model, "Weather " + SELECT), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=theirs, env={**os.environ, **environment})
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 1 << 16):
            shown += piece
    except OSError:  # the program has ended
        pass
    os.close(ours)
    assert done.wait() == 0, shown
    return shown.decode()


def attempt(verbose, check, *arguments):
    try:
        check(*arguments)
    except Exception:  # the table says what failed
        if verbose:
            traceback.print_exc(limit=-3)
        return "no"
    return "yes"


def row(family, spoken, verbose):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for mode in MODES:
            write_model(spoken, folder / f"{mode}.gguf", family, mode)
        server = Server("--store", "none", "--ctx", "4096", "--sequences", "2",
                        models=[str(folder / f"{mode}.gguf") for mode in MODES])
        try:
            check = Check(family, Client(server.port))
            checks = [check.offered, check.parsed, check.streamed, check.cut_off, check.forced, check.in_thoughts,
                      check.second_turn]
            cells = [attempt(verbose, each) for each in checks]
        finally:
            server.stop()
        cells.append(attempt(verbose, check.terminal, folder))
    if not family.think and cells[5] == "yes":
        cells[5] = "none"
    return f"| {family.name} | `{family.dialect}` | " + " | ".join(cells) + " |\n"


def main():
    Server.program, spoken, path, *rest = sys.argv[1:]
    chosen = [argument for argument in rest if not argument.startswith("-")]
    families = [each for each in FAMILIES if not chosen or each.dialect in chosen]
    table = HEAD.format(columns=" | ".join(COLUMNS), rules="---|" * len(COLUMNS))
    for family in families:
        line = row(family, spoken, bool(chosen))
        print(line, end="", flush=True)
        table += line
    if "--write" in rest:
        pathlib.Path(path).write_text(table)
    elif not chosen and table != pathlib.Path(path).read_text():
        sys.exit(f"{path} says something else; {sys.argv[0]} … --write writes it")


main()
