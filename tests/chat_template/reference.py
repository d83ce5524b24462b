"""Renders chat templates like Hugging Face's transformers: with a sandboxed Jinja 3.1, the settings
of transformers, and its tojson, raise_exception, strftime_now, loop controls and generation tag."""

import copy
import datetime
import functools
import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = datetime.datetime(2024, 7, 26, 9, 5, 7)


class Generation(jinja2.ext.Extension):
    """The tag {% generation %} … {% endgeneration %}, which marks the assistant's text. Prints its
    body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def _raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


ENVIRONMENT = environment()


@functools.lru_cache(maxsize=64)
def parsed(source):
    """Returns the template. Jinja takes longer to parse one than to render it."""
    return ENVIRONMENT.from_string(source)


def render(case):
    """Returns the text of a case (see render_main.cc). Raises the errors of Jinja."""
    template = parsed(case["template"])
    # Some of Jinja's filters change their input lists before they fail.
    variables = {**copy.deepcopy(case.get("variables", {})),
                 "messages": case.get("messages", []), "tools": case.get("tools"),
                 "add_generation_prompt": case.get("add_generation_prompt", True),
                 "bos_token": case.get("bos", "<s>"), "eos_token": case.get("eos", "</s>")}
    variables.setdefault("documents", None)
    return template.render(**variables)
