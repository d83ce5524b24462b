"""Tests that a fault is one line, which is true: of errors, and of what is scored.

usage: errors_test.py KVCACHE MAKE_MODEL  (paths of the two programs)
"""

import json
import pathlib
import re
import resource
import struct
import subprocess
import unittest

import program
from program import CliTest, run


class Scores(CliTest):
    def test_a_perplexity_beyond_a_double(self):
        """The logits are finite and large. Their losses are, too; the perplexity is no number."""
        data = bytearray(self.bytes)
        name = b"output_norm.weight"
        at = self.bytes.index(name) + len(name)
        rank = struct.unpack_from("<I", data, at)[0]
        start = self.tensor_data() + struct.unpack_from("<Q", data, at + 4 + 8 * rank + 4)[0]
        for scale in (1e6, 1e15):
            data[start:start + 4 * 64] = struct.pack("<f", scale) * 64
            path = self.file("large.gguf", bytes(data))
            args = ("eval", path, "--tokens", "1,5,9,400,3")
            report = json.loads(self.succeeds(*args, "--json"))
            self.assertGreater(report["nll"], 4 * 710)
            self.assertIsNone(report["perplexity"])
            out = self.succeeds(*args)
            power = float(re.search(r"perplexity e\^([0-9.e+]+) ", out).group(1))
            self.assertAlmostEqual(power / (report["nll"] / 4), 1, 4)

    def test_one_token_has_no_perplexity(self):
        self.assertIn("nothing to score", self.succeeds("eval", self.model, "--tokens", "5"))
        report = json.loads(self.succeeds("eval", self.model, "--tokens", "5", "--json"))
        self.assertIsNone(report["perplexity"])
        self.assertEqual(report["nll"], 0)

    def test_beyond_the_models_context(self):
        for tokens, warned in ((256, False), (300, True)):
            path = self.file("many.txt", b"7 " * tokens)
            code, _, err = run("eval", self.model, "--tokens-file", path)
            self.assertEqual(code, 0)
            self.assertEqual("the model was made for 256 tokens" in err, warned)


class OneTruth(CliTest):
    """A command that fails prints one line, even where it has notes to tell."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        data = bytearray(cls.bytes)
        key = b"tokenizer.ggml.bos_token_id"
        struct.pack_into("<I", data, data.index(key) + len(key) + 4, 5000)
        cls.noted = str(cls.dir / "noted.gguf")  # each command has a note on its vocabulary
        pathlib.Path(cls.noted).write_bytes(bytes(data))

    def test_commands(self):
        there = str(self.dir)
        for args, word in (
                (["run", self.noted, "-p", "x", "--memory-budget", "1M", "--ctx", "100000"], "--memory-budget"),
                (["eval", self.noted, "--tokens", "1,2", "--memory-budget", "1M", "--ctx", "100000"],
                 "--memory-budget"),
                (["run", self.noted, "-p", "x " * 600], "the context holds 256"),
                (["run", self.noted, "-p", "x", "--tools", "/nonexistent"], "/nonexistent"),
                (["run", self.noted, "-p", "x", "--draft", "/nonexistent.gguf"], "--draft"),
                (["run", self.noted, "-p", "x", "--draft", "head"], "draft head"),
                (["run", self.noted, "-p", "x", "--store", "/proc/x", "--chat-template", there], there),
                (["eval", self.noted, "--tokens", "1,9999", "--ctx", "9999"], "9999"),
                (["eval", self.noted, "--tokens", "1,2", "--encode", "x"], "no encoder"),
                (["eval", self.noted, "--tokens", "1,2", "--logits", there], there),
                (["eval", self.noted, "--tokens", "1,2,3", "--resume-at", "3"], "resuming after 3"),
                (["eval", self.noted, "--tokens", "1,2,3", "--resume-at", "2", "--via", "disk", "--store",
                  "/proc/x"], "/proc/x"),
                (["tokenize", self.noted, "--detokenize", "9999"], "9999"),
                (["store", "ls", "--store", "/proc/x"], "/proc/x"),
                (["store", "import", there, "--store", str(self.dir / "s")], there)):
            self.fails(args, word)

    def test_notes_are_told(self):
        for args in (["run", self.noted, "-p", "x", "-n", "1", "--store", "/proc/x"],
                     ["eval", self.noted, "--tokens", "1,2"], ["tokenize", self.noted, "x"]):
            code, _, err = run(*args)
            self.assertEqual(code, 0, err)
            self.assertEqual(err.count("bos_token_id is 5000"), 1, err)
            self.assertEqual(err.count("prefixes are not stored"), int("--store" in args), err)

    def test_a_server_that_does_not_start(self):
        if not program.has_server():
            self.fails(["serve", self.model], "kvcache serve: ", "KVCACHE_BUILD_SERVER=ON")
            return
        short = self.file("short.gguf", self.bytes[:50_000])
        for args, word in ((["/nonexistent.gguf"], "/nonexistent.gguf"), (["/dev/null"], "/dev/null"),
                           ([short], "short.gguf"), ([self.model, "--draft", "/nonexistent.gguf"], "--draft"),
                           ([self.model, "--draft", "head"], "no draft head"), (["nonesuch"], "nonesuch"),
                           ([self.model, "--api-keys", "/nonexistent"], "--api-keys"),
                           ([self.model, "--host", "nope", "--log", "error"], "nope")):
            self.fails(["serve", *args, "--port", "0"], "kvcache serve: ", word)

    def test_memory_that_is_not_there(self):
        """Whatever does not fit is one line, too."""
        space = 600 << 20
        self.require_address_space(space)
        limit = program.limited_to(resource.RLIMIT_AS, space)
        for args in (["run", self.model, "-p", "x", "--ctx", "200000000"],
                     ["eval", self.model, "--tokens", "1,2", "--ctx", "200000000"]):
            done = subprocess.run([program.KVCACHE, *args], preexec_fn=limit, capture_output=True,
                                  text=True, stdin=subprocess.DEVNULL, timeout=120)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)


if __name__ == "__main__":
    program.main()
