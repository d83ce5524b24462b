"""How families of models write: small templates of ours, and an answer as the model writes it.

Each answer is thoughts (if the family has them), a text, and two calls, of which the second has no arguments. Bare
calls stand alone. The names of tools and the arguments are those of TOOLS and CALLS.
"""

import dataclasses

THOUGHTS = "The user wants the weather."
TEXT = "Let me look."
FINAL = "The sun shines."
CALLS = [("get_weather", {"city": "Paris", "days": 3}), ("get_weather_time", {})]
CITY = {"type": "string", "enum": ["Paris", "Oslo"]}
TOOLS = [
    {"name": "get_weather", "description": "Returns the weather.",
     "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                    "required": ["city"]}},
    {"name": "get_weather_time", "description": "Returns the time.",
     "parameters": {"type": "object", "properties": {}}},
]

FRAME = (
    "{%- if tools %}@SYSTEM@{% endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}@BEGIN@@THOUGHTS@@TEXT@@CALLS@@END@"
    "{%- elif m.role == 'tool' %}@RESULT@"
    "{%- else %}@USER@{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}@BEGIN@@OPENED@{% endif %}")


@dataclasses.dataclass(frozen=True)
class Family:
    name: str  # of the models
    dialect: str
    calls: str  # as the model writes them
    template: str  # of the calls
    think: tuple = ("<think>\n", "\n</think>\n\n")  # around thoughts; none: the family has none
    key: str = "reasoning_content"  # under which the template reads thoughts
    text: tuple = ("", "")  # around the text
    bare: bool = False  # calls have no marker, so they stand alone
    begin: str = "<|im_start|>assistant\n"
    opened: str = ""  # what the prompt has of the answer
    ends: tuple = ("<|im_end|>",)  # tokens that end the answer with calls, and the final one
    markers: tuple = ()  # that are control tokens in the vocabularies of the family
    result: str = "<|im_start|>tool\n{{ m.content }}<|im_end|>\n"
    user: str = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    system: str = "<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n"

    def answer(self):
        if self.bare:
            return self.thoughts() + self.calls
        return self.thoughts() + self.text[0] + TEXT + self.text[1] + self.calls

    def said(self, text):
        """What the model says of an answer."""
        return text.removeprefix(self.opened)

    def final(self):
        return self.thoughts() + self.text[0] + FINAL + self.text[1]

    def thoughts(self):
        return self.think[0] + THOUGHTS + self.think[1] if self.think else ""

    def chat_template(self):
        thoughts = ""
        if self.think:
            thoughts = "{% if m." + self.key + " %}" + literal(self.think[0]) + "{{ m." + self.key + " }}" \
                + literal(self.think[1]) + "{% endif %}"
        text = "{% if m.content %}" + literal(self.text[0]) + "{{ m.content }}" + literal(self.text[1]) + "{% endif %}"
        parts = {"SYSTEM": self.system, "BEGIN": literal(self.begin), "OPENED": literal(self.opened),
                 "THOUGHTS": thoughts, "TEXT": text,
                 "CALLS": "{% if m.tool_calls %}" + self.template + "{% endif %}", "RESULT": self.result,
                 "END": literal(self.ends[0] + "\n"), "USER": self.user}
        template = FRAME
        for name, part in parts.items():
            template = template.replace("@" + name + "@", part)
        return template


def literal(text):
    """An expression, because templates remove line breaks behind tags."""
    quoted = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return "{{ '" + quoted + "' }}" if text else ""


def each(body, before="", after="", separator=""):
    """A loop over the calls: f is the function, and loop the loop."""
    between = "{% if not loop.last %}" + literal(separator) + "{% endif %}" if separator else ""
    return (literal(before) + "{% for c in m.tool_calls %}{% set f = c.function %}" + body + between + "{% endfor %}"
            + literal(after))


OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
FIRST = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}'
SECOND = '{"name": "get_weather_time", "arguments": {}}'
ARGUMENTS = '{"city": "Paris", "days": 3}'


def array(begin, end):
    """Calls as an array of objects between two markers, and the template that writes them."""
    return {"calls": f"{begin}[{FIRST}, {SECOND}]{end}",
            "template": each(OBJECT, begin + "[", "]" + end, ", ")}


def parameters(begin, call, name_end, parameter, value_begin, value_end, call_end, end, together=False):
    """Calls with tags for their parameters."""
    def write(name, values):
        return f"{call}{name}{name_end}" + "".join(
            f"{parameter}{key}{value_begin}{value}{value_end}" for key, value in values) + call_end
    first = write("get_weather", [("city", "Paris"), ("days", 3)])
    second = write("get_weather_time", [])
    body = (literal(call) + "{{ f.name }}" + literal(name_end) + "{% for k, v in f.arguments.items() %}"
            + literal(parameter) + "{{ k }}" + literal(value_begin)
            + "{{ v if v is string else v | tojson }}" + literal(value_end) + "{% endfor %}" + literal(call_end))
    if together:
        return {"calls": begin + first + second + end, "template": each(body, begin, end)}
    return {"calls": begin + first + end + begin + second + end,
            "template": each(literal(begin) + body + literal(end))}


def named(begin, call, name_end, call_end, end):
    """Calls as a name and an object, in one section."""
    return {"calls": f"{begin}{call}get_weather{name_end}{ARGUMENTS}{call_end}"
                     f"{call}get_weather_time{name_end}{{}}{call_end}{end}",
            "template": each(literal(call) + "{{ f.name }}" + literal(name_end) + "{{ f.arguments | tojson }}"
                             + literal(call_end), begin, end)}


PYTHON = ("{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}"
          "{% if not loop.last %}, {% endif %}{% endfor %})")
MARK = "｜DSML｜"
DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>")


def braces(quote):
    return ("{{ f.name }}{{ '{' }}{% for k, v in f.arguments.items() %}{{ k }}:{% if v is string %}" + quote
            + "{{ v }}" + quote + "{% else %}{{ v }}{% endif %}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}")


def gemma(begin, end, quote):
    return {"calls": f"{begin}call:get_weather{{city:{quote}Paris{quote},days:3}}{end}"
                     f"{begin}call:get_weather_time{{}}{end}",
            "template": each(literal(begin + "call:") + braces(quote) + literal(end)),
            "markers": (begin, end, quote)}


FAMILIES = [
    Family("Qwen 2.5, Qwen 3, QwQ, Hermes", "hermes",
           f"\n<tool_call>\n{FIRST}\n</tool_call>\n<tool_call>\n{SECOND}\n</tool_call>",
           each(literal("\n<tool_call>\n") + OBJECT + literal("\n</tool_call>"))),
    Family("Llama 3.1 to 3.3", "json", '{"name": "get_weather", "parameters": ' + ARGUMENTS + "}",
           each('{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'), think=(), bare=True,
           begin="<|start_header_id|>assistant<|end_header_id|>\n\n", ends=("<|eot_id|>",),
           user="<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>",
           result="<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content }}<|eot_id|>",
           system="<|start_header_id|>system<|end_header_id|>\n\n{{ tools | tojson }}<|eot_id|>"),
    Family("Llama 4", "python", '[get_weather(city="Paris", days=3), get_weather_time()]',
           each(PYTHON, "[", "]", ", "), think=(), bare=True,
           begin="<|header_start|>assistant<|header_end|>\n\n", ends=("<|eot|>",),
           user="<|header_start|>{{ m.role }}<|header_end|>\n\n{{ m.content }}<|eot|>",
           result="<|header_start|>ipython<|header_end|>\n\n{{ m.content }}<|eot|>",
           system="<|header_start|>system<|header_end|>\n\n{{ tools | tojson }}<|eot|>"),
    Family("gpt-oss", "harmony",
           "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + ARGUMENTS,
           "{% set f = m.tool_calls[0].function %}<|start|>assistant<|channel|>commentary to=functions.{{ f.name }} "
           "<|constrain|>json<|message|>{{ f.arguments | tojson }}",
           think=("<|channel|>analysis<|message|>", "<|end|>"), key="thinking",
           text=("<|start|>assistant<|channel|>commentary<|message|>", "<|end|>"),
           begin="<|start|>assistant", ends=("<|call|>", "<|return|>"),
           markers=("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"),
           user="<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>",
           result="<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>{{ m.content }}<|end|>",
           system="<|start|>developer<|message|># Tools {{ tools | tojson }}<|end|>"),
    Family("Kimi K2", "kimi",
           "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
           + ARGUMENTS + "<|tool_call_end|><|tool_call_begin|>functions.get_weather_time:1<|tool_call_argument_begin|>"
           "{}<|tool_call_end|><|tool_calls_section_end|>",
           each("<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ f.arguments | tojson }}<|tool_call_end|>",
                "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
           markers=("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                    "<|tool_call_end|>", "<|tool_calls_section_end|>")),
    Family("DeepSeek V3, R1", "deepseek",
           **named(DEEPSEEK[0], DEEPSEEK[1] + "function" + DEEPSEEK[2], "\n```json\n", "\n```" + DEEPSEEK[3],
                   DEEPSEEK[4]), markers=DEEPSEEK),
    Family("DeepSeek V3.1", "deepseek-v3.1", **named(*DEEPSEEK), markers=DEEPSEEK),
    Family("DeepSeek V3.2", "deepseek-v3.2",
           f'\n\n<{MARK}function_calls>\n<{MARK}invoke name="get_weather">\n'
           f'<{MARK}parameter name="city" string="true">Paris</{MARK}parameter>\n'
           f'<{MARK}parameter name="days" string="false">3</{MARK}parameter>\n</{MARK}invoke>\n'
           f'<{MARK}invoke name="get_weather_time">\n</{MARK}invoke>\n</{MARK}function_calls>',
           each(literal(f'<{MARK}invoke name="') + "{{ f.name }}" + literal('">\n')
                + "{% for k, v in f.arguments.items() %}" + literal(f'<{MARK}parameter name="') + "{{ k }}"
                + literal('" string="') + "{{ 'true' if v is string else 'false' }}" + literal('">')
                + "{{ v if v is string else v | tojson }}" + literal(f"</{MARK}parameter>\n") + "{% endfor %}"
                + literal(f"</{MARK}invoke>\n"), f"\n\n<{MARK}function_calls>\n", f"</{MARK}function_calls>")),
    Family("Devstral, Magistral, Ministral 3", "mistral-args",
           "[TOOL_CALLS]get_weather[ARGS]" + ARGUMENTS + "[TOOL_CALLS]get_weather_time[ARGS]{}",
           each("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"), think=("[THINK]", "[/THINK]"),
           begin="", ends=("</s>",), markers=("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
           user="[INST]{{ m.content }}[/INST]", result="[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]",
           system="[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]"),
    Family("Mistral v3 to v7", "mistral",
           '[TOOL_CALLS][{"name": "get_weather", "arguments": ' + ARGUMENTS + ', "id": "abcdefgh1"}, '
           '{"name": "get_weather_time", "arguments": {}, "id": "abcdefgh2"}]',
           each("{% if c.id | length != 9 %}{{ raise_exception('ids have 9 letters or digits') }}{% endif %}"
                '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ c.id }}"}',
                "[TOOL_CALLS][", "]", ", "), think=(), begin="", ends=("</s>",), markers=("[TOOL_CALLS]",),
           user="[INST]{{ m.content }}[/INST]",
           result="[TOOL_RESULTS]{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids') }}{% endif %}"
                  '{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]',
           system="[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]"),
    Family("Command R7B, Command A", "command",
           '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": ' + ARGUMENTS
           + '},\n    {"tool_call_id": "1", "tool_name": "get_weather_time", "parameters": {}}\n]<|END_ACTION|>',
           each(literal("\n    ") + '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", '
                '"parameters": {{ f.arguments | tojson }}}', "<|START_ACTION|>[", "\n]<|END_ACTION|>", ","),
           think=("<|START_THINKING|>", "<|END_THINKING|>"), key="tool_plan",
           text=("<|START_RESPONSE|>", "<|END_RESPONSE|>"), ends=("<|END_OF_TURN_TOKEN|>",),
           begin="<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
           markers=("<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>",
                    "<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    Family("Apertus", "apertus",
           '<|tools_prefix|>[{"get_weather": ' + ARGUMENTS + '}, {"get_weather_time": {}}]<|tools_suffix|>',
           each('{"{{ f.name }}": {{ f.arguments | tojson }}}', "<|tools_prefix|>[", "]<|tools_suffix|>", ", "),
           think=("<|inner_prefix|>", "<|inner_suffix|>"), begin="<|assistant_start|>", ends=("<|assistant_end|>",),
           markers=("<|tools_prefix|>", "<|tools_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>")),
    Family("Qwen 3 Coder, Qwen 3.5, Nemotron 3, StepFun", "qwen-coder",
           **parameters("\n<tool_call>\n", "<function=", ">\n", "<parameter=", ">\n", "\n</parameter>\n",
                        "</function>\n", "</tool_call>")),
    Family("Seed-OSS", "seed-oss",
           **parameters("\n<seed:tool_call>\n", "<function=", ">\n", "<parameter=", ">", "</parameter>\n",
                        "</function>\n", "</seed:tool_call>"),
           think=("<seed:think>", "</seed:think>")),
    Family("MiniMax M2", "minimax",
           **parameters("\n<minimax:tool_call>\n", '<invoke name="', '">\n', '<parameter name="', '">',
                        "</parameter>\n", "</invoke>\n", "</minimax:tool_call>", together=True)),
    Family("GLM 4.5 to 4.7", "glm",
           **parameters("\n<tool_call>", "", "\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "",
                        "</tool_call>")),
    Family("Hunyuan", "hunyuan",
           **named("<tool_calls>", "<tool_call>function<tool_sep>", "\n```json\n", "\n```</tool_call>\n",
                   "</tool_calls>")),
    Family("Apriel", "tool-calls", **array("\n<tool_calls>", "</tool_calls>"),
           think=("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n")),
    Family("Nemotron Nano 2", "nemotron", **array("<TOOLCALL>", "</TOOLCALL>")),
    Family("Granite 3.3", "granite", **array("<|tool_call|>", ""), markers=("<|tool_call|>",), think=()),
    Family("Phi 4 mini", "phi", **array("<|tool_call|>", "<|/tool_call|>"), think=(),
           markers=("<|tool_call|>", "<|/tool_call|>")),
    Family("FireFunction", "firefunction", **array(" functools", ""), think=()),
    Family("GigaChat 3", "gigachat", "<|message_sep|>\n\nfunction call<|role_sep|>\n" + FIRST,
           each(literal("<|message_sep|>\n\nfunction call<|role_sep|>\n") + OBJECT), think=(),
           markers=("<|message_sep|>", "<|role_sep|>")),
    Family("GigaChat 3.1", "gigachat-v3.1", "<|function_call|>" + FIRST,
           each("<|function_call|>" + OBJECT), think=(), markers=("<|function_call|>",)),
    Family("Functionary v3.2", "functionary-v3.2", **named("", ">>>", "\n", "", ""), think=(),
           text=(">>>all\n", ""), opened=">>>"),
    Family("Nemotron Mini", "nemotron-mini",
           f"<toolcall> {FIRST} </toolcall>\n<toolcall> {SECOND} </toolcall>",
           each(literal("<toolcall> ") + OBJECT + literal(" </toolcall>"), separator="\n"), think=(),
           begin="<extra_id_1>Assistant\n", ends=("<extra_id_1>",)),
    Family("Hunyuan 3", "hunyuan-v3",
           **parameters("<tool_calls:opensource>\n", "<tool_call:opensource>", "<tool_sep:opensource>\n",
                        "<arg_key:opensource>", "</arg_key:opensource>\n<arg_value:opensource>",
                        "</arg_value:opensource>\n", "</tool_call:opensource>\n", "</tool_calls:opensource>",
                        together=True), think=("<think:opensource>", "</think:opensource>")),
    Family("Functionary v3.1", "functionary", **named("", "<function=", ">", "</function>", ""), think=()),
    Family("LFM2", "lfm",
           '<|tool_call_start|>[get_weather(city="Paris", days=3), get_weather_time()]<|tool_call_end|>',
           each(PYTHON, "<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
           markers=("<|tool_call_start|>", "<|tool_call_end|>")),
    Family("MiniCPM 3", "minicpm",
           '<|tool_call_start|>\n```python\nget_weather(city="Paris", days=3)\nget_weather_time()\n```\n'
           "<|tool_call_end|>",
           each(PYTHON + literal("\n"), "<|tool_call_start|>\n```python\n", "```\n<|tool_call_end|>"),
           think=("<|thought_start|>\n", "\n<|thought_end|>\n"),
           markers=("<|tool_call_start|>", "<|tool_call_end|>")),
    Family("Gemma 4", "gemma", **gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
           think=("<|channel>thought\n", "<channel|>"), begin="<|turn>model\n", ends=("<turn|>",)),
    Family("FunctionGemma", "function-gemma", **gemma("<start_function_call>", "<end_function_call>", "<escape>"),
           think=(), begin="<start_of_turn>model\n", ends=("<end_of_turn>",)),
]
