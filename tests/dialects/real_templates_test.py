"""Recognises the chat templates of published models, from the packages of tests/tokenizer/real if they are installed.

Usage: real_templates_test.py KVCACHE_DIALECT_OF [TEMPLATE…]

With files it prints what it finds in them. A template that is not in DIALECTS is without calls: it writes none, and
nothing says how its model does.
"""

import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "chat_template"))
import real_templates  # noqa: E402

SKIPPED = 77
DIALECTS = {
    "library/cogito:14b": "hermes",
    "library/cogito:3b": "json",
    "library/deepcoder:14b": "deepseek",
    "library/deepseek-r1:8b": "deepseek",
    "library/deepseek-r1:latest": "deepseek",
    "library/deepseek-v2.5:236b": "deepseek",
    "library/deepseek-v3:671b": "deepseek",
    "library/deepseek-v3.1:latest": "deepseek-v3.1",
    "library/firefunction-v2:70b": "firefunction",
    "library/granite3-dense:2b": "granite",
    "library/granite3.1-moe:1b": "granite",
    "library/granite3.2-vision:2b": "granite",
    "library/granite3.2:8b": "granite",
    "library/granite3.3:2b": "granite",
    "library/granite4:350m": "hermes",
    "library/granite4:latest": "hermes",
    "library/llama3.1:8b": "json",
    "library/llama3.2-vision:90b": "json",
    "library/llama3.2-vision:latest": "json",
    "library/llama3.2:3b": "json",
    "library/llama4:latest": "json",
    "library/nemotron-mini:4b": "nemotron-mini",
    "library/nemotron:70b": "json",
    "library/phi4-mini-reasoning:3.8b": "phi",
    "library/phi4-mini:3.8b": "phi",
    "library/qwen2.5-coder:1.5b": "hermes",
    "library/qwen2.5:0.5b": "hermes",
    "library/qwen3-coder:30b": "qwen-coder",
    "library/qwen3-next:80b": "hermes",
    "library/qwen3:0.6b": "hermes",
    "library/qwq:32b": "hermes",
    "library/r1-1776:671b": "deepseek",
    "library/rnj-1:latest": "hermes",
    "tokenizer-deepseek_v3": "deepseek",
    "tokenizer-qwen3": "hermes",
}
# Special tokens of vocabularies whose templates do not name them, by a part of the model's name.
TOKENS = {"phi4-mini": ["<|tool_call|>", "<|/tool_call|>"], "LFM2": ["<|tool_call_start|>", "<|tool_call_end|>"]}


def special(name, source):
    """The special tokens that a template names, and those that it does not."""
    words = set(re.findall(r"<[|｜/]?[^\s<>{}\"']+?>|\[/?[A-Z_]+\]", source))
    known = [word for word in sorted(words) if "|" in word or "｜" in word or word[0] == "["]
    others = [token for part, tokens in TOKENS.items() if part in name for token in tokens]
    return known + [token for token in others if token not in known]


def end(tokens):
    """The token that ends answers, by its name."""
    return next((token for token in tokens if re.search("eos|eot_id|im_end|end.of.sentence", token)), None)


def recognise(program, templates):
    """Yields the name of each template, and what the program says of it."""
    asked = ""
    for name, source in templates:
        tokens = special(name, source)
        asked += json.dumps({"template": source, "special": tokens, "end": end(tokens)}) + "\n"
    done = subprocess.run([program], input=asked, capture_output=True, text=True, check=True)
    for (name, _), line in zip(templates, done.stdout.splitlines(), strict=True):
        yield name, json.loads(line)


def main():
    program, *paths = sys.argv[1:]
    if paths:
        templates = [(path, pathlib.Path(path).read_text(encoding="utf-8")) for path in paths]
        for name, found in recognise(program, templates):
            print(name, json.dumps(found, ensure_ascii=False))
        return 0
    templates = list(real_templates.load().items())
    if not templates:
        print("SKIPPED: the packages are not installed in tests/tokenizer/real")
        return SKIPPED
    # The entries of a mapping are numbered.
    templates = [(name.split(" ")[-1], source) for name, source in templates]
    wrong = 0
    for name, found in recognise(program, templates):
        expected = DIALECTS.get(name, "plain")
        if found.get("dialect") != expected:
            wrong += 1
            print(f"{name}: {json.dumps(found, ensure_ascii=False)}; must be {expected}")
    missing = set(DIALECTS) - {name for name, _ in templates}
    print(f"{len(templates)} templates, {wrong} wrong; not found: {sorted(missing)}")
    return 1 if wrong or missing else 0


sys.exit(main())
