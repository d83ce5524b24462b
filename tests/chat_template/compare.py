"""Compares rendered chat templates with Jinja's, byte for byte: templates modelled on published
families over many conversations, published templates if they are installed, and random templates.

usage: compare.py RENDER  (path of kvcache_render_template)

If Jinja fails, this interpreter must fail too, or be one of a few random templates for which it is
more lenient. If Jinja renders a text, this interpreter must render the same text, or report that
something is not supported.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import unittest
import warnings

import conversations
import random_templates
import real_templates
import reference

HERE = pathlib.Path(__file__).resolve().parent
TEMPLATES = {path.stem: path.read_text(encoding="utf-8")
             for path in sorted((HERE / "templates").glob("*.jinja"))}
RENDER = ""
RANDOM_TEMPLATES = 400 if os.environ.get("KVCACHE_SLOW_TESTS") else 160
# Functions and methods cannot be printed; in Jinja their text is an address in memory.
NOT_SUPPORTED = ("is not supported", "cannot be printed")


def render_all(cases):
    """Returns the program's answer to each case."""
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run([RENDER], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(cases), (len(answers), len(cases))
    return answers


def jinja(case):
    """Returns (text, None) or (None, error)."""
    try:
        return reference.render(case), None
    except Exception as error:  # Jinja's errors, and any that Python raises inside of it
        return None, error


class Families(unittest.TestCase):
    def test_the_same_bytes(self):
        cases = list(conversations.cases(TEMPLATES))
        rendered = failed = 0
        for case, answer in zip(cases, render_all(cases)):
            text, error = jinja(case)
            if error is None:
                self.assertEqual(answer.get("text", answer), text, case["title"])
                rendered += 1
            else:
                self.assertIn("error", answer, f"{case['title']}: Jinja says {error!r}")
                failed += 1
        print(f"{len(TEMPLATES)} templates, {rendered} texts equal, {failed} fail in both")
        self.assertGreater(rendered, failed)

    def test_foreign_ranges(self):
        """The contents consist of characters that no template has. The foreign ranges must be
        exactly those characters."""
        def private(text):
            return "".join(chr(0xE000 + ord(c) % 64) for c in text)

        cases = []
        for name, source in TEMPLATES.items():
            for title, messages in conversations.CONVERSATIONS.items():
                if any("tool_calls" in m or m["role"] in ("tool", "narrator") or
                       not isinstance(m["content"], str) for m in messages):
                    continue
                cases.append({"title": (name, title), "template": source, "messages": [
                    {key: text if key == "role" else private(text) for key, text in m.items()}
                    for m in messages]})
        shown = 0
        for case, answer in zip(cases, render_all(cases)):
            if "error" in answer:
                continue
            data = answer["text"].encode()
            foreign = b"".join(data[begin:end] for begin, end in answer["foreign"]).decode()
            whole = "".join(c for c in answer["text"] if 0xE000 <= ord(c) < 0xE040)
            self.assertEqual(foreign, whole, case["title"])
            shown += len(whole) > 0
        self.assertGreater(shown, 50)


class Real(unittest.TestCase):
    """Templates of published models, if their packages are installed."""

    def setUp(self):
        self.templates = real_templates.load()
        if not self.templates:
            self.skipTest(f"the packages of {real_templates.FOLDER} are not installed")

    def test_the_same_bytes(self):
        cases = list(real_templates.cases(self.templates))
        counts = {"equal": 0, "fail in both": 0}
        for case, answer in zip(cases, render_all(cases)):
            text, error = jinja(case)
            if error is None:
                self.assertEqual(answer.get("text", answer), text, case["title"])
                counts["equal"] += 1
            else:
                self.assertIn("error", answer, f"{case['title']}: Jinja says {error!r}")
                counts["fail in both"] += 1
        print(f"{len(self.templates)} templates, {counts}")
        self.assertGreater(counts["equal"], 2 * counts["fail in both"])

    def test_a_thousand_rounds_of_tools(self):
        """The processor's time is at most twice Jinja's, and never counts below a tenth of a second: it includes
        the conversion of the conversation, which Python's Jinja is given."""
        measured = 0
        for name, source in self.templates.items():
            if "tool" not in source:
                continue
            case = {"title": name, "template": source, "messages": conversations.rounds(1000),
                    "tools": conversations.TOOLS}
            begin = time.process_time()
            text, error = jinja(case)
            seconds = time.process_time() - begin
            if error is not None:
                continue
            answer = render_all([case])[0]
            self.assertEqual(answer.get("text", answer), text, name)
            self.assertLess(answer["seconds"], max(0.1, 2 * seconds), name)
            measured += 1
        print(f"{measured} templates")
        self.assertGreater(measured, 10)


class Random(unittest.TestCase):
    def test_the_same_bytes(self):
        cases = list(random_templates.cases(RANDOM_TEMPLATES, "kvcache"))
        counts = {"equal": 0, "fail in both": 0, "not supported": 0, "more lenient": 0}
        for case, answer in zip(cases, render_all(cases)):
            text, error = jinja(case)
            if error is None and "text" in answer:
                self.assertEqual(answer["text"], text, case["template"])
                counts["equal"] += 1
            elif error is None:
                self.assertTrue(any(words in answer["error"] for words in NOT_SUPPORTED),
                                f"{case['template']!r}: {answer['error']}")
                counts["not supported"] += 1
            else:
                counts["fail in both" if "error" in answer else "more lenient"] += 1
        print(counts)
        self.assertGreater(counts["equal"], 0.6 * RANDOM_TEMPLATES)
        self.assertLess(counts["more lenient"], 0.05 * RANDOM_TEMPLATES)


if __name__ == "__main__":
    RENDER = sys.argv[1]
    warnings.simplefilter("ignore")  # Python warns about the code that Jinja generates
    result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result
    everything = result.testsRun == len(result.skipped)
    sys.exit(77 if everything and result.wasSuccessful() else not result.wasSuccessful())
