"""The base class of the chat's tests: chats with small random models."""

import json
import subprocess

import program
from program import CliTest

# A ChatML template. The variable "shorten" cuts answers before the last message to 2 characters.
TEMPLATE = r"""
{%- if messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}
{%- if tools %}{{- '<|im_start|>system\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}
{%- for m in messages if m.role != 'system' %}
    {%- set content = m.content %}
    {%- if m.role == 'assistant' and shorten is defined and not loop.last %}
        {%- set content = content[:2] %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think></think>' }}{% endif %}
{%- endif %}"""


class ChatTest(CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.plain = cls.make("plain.gguf")
        cls.marked = cls.make("marked.gguf", "--control", "<|im_start|>", "--control",
                              "<|im_end|>")
        source = cls.dir / "chat.jinja"
        source.write_text(TEMPLATE, encoding="utf-8")
        cls.chat = cls.make("chat.gguf", "--control", "<|im_start|>", "--control", "<|im_end|>",
                            "--chat-template", str(source))

    def run_chat(self, model, text, *flags, status=0, count="8"):
        done = subprocess.run([program.KVCACHE, "run", model, "--chat", "-n", count, "--seed", "3",
                               *flags], input=text, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout, done.stderr

    def answers(self, model, text, *flags):
        out, _ = self.run_chat(model, text, "--json", *flags)
        return [json.loads(line) for line in out.splitlines()]
