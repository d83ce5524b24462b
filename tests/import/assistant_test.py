"""Tests Gemma 4 with its assistant from the command line: directories in Hugging Face's layout become a stored
model that drafts, and answers as the model of the GGUF files does.

usage: assistant_test.py KVCACHE MAKE_MODEL WRITE_HF  (paths of the programs)
"""

import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))

import program  # noqa: E402  (the path comes first)
from program import CliTest  # noqa: E402

WRITE_HF = ""
GREEDY = ("--temp", "0", "-n", "60", "--raw", "--json")
SIZES = ("--type", "f32", "--head-dim", "64", "--window", "24")


class Server:
    """A server's process."""

    def __init__(self, model, *flags):
        self.process = subprocess.Popen([program.KVCACHE, "serve", model, "--port", "0", "--store", "none", *flags],
                                        stderr=subprocess.PIPE, text=True)
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.url = found.group(0)
                return
        raise AssertionError("the server ended: " + "".join(lines))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()

    def answer(self, prompt):
        body = {"prompt": prompt, "max_tokens": 60, "temperature": 0}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["text"]

    def answers(self, prompts):
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(self.answer, prompts))

    def evaluated_tokens(self):
        text = urllib.request.urlopen(self.url + "/metrics", timeout=60).read().decode()
        return int(re.search(r"^kvcache_evaluated_tokens_total\S* (\d+)", text, re.M).group(1))


class Assistant(CliTest):
    def setUp(self):
        self.env = {"KVCACHE_MODELS": str(self.dir / "store")}
        self.head = self.make("head.gguf", "--arch", "gemma4-assistant", *SIZES)
        # Twice the own size is that of the model.
        self.target = self.make("target.gguf", "--arch", "gemma4", *SIZES, "--width", "128")

    def directory(self, path):
        folder = path.removesuffix(".gguf")
        subprocess.run([WRITE_HF, path, folder], check=True)
        return folder

    def create(self, name, model, draft, *flags):
        text = f"FROM {model}\nDRAFT {draft}\n"
        return self.succeeds("create", name, "-f", self.file("Modelfile", text.encode()), *flags,
                             env=self.env)

    def answer(self, *args, prompt="seven small animals"):
        return json.loads(self.succeeds("run", *args, "-p", prompt, *GREEDY, env=self.env))

    def test_directories_become_a_model_that_drafts(self):
        types = ("--quantize", "q8_0", "--quantize-draft", "q4_0")
        self.create("files", self.target, self.head, *types)
        self.create("directories", self.directory(self.target), self.directory(self.head), *types)
        plain = self.answer("files", "--draft", "none")
        self.assertEqual(plain["speculation"]["drafted"], 0)
        for name in ("files", "directories"):
            for tokens in ("1", "4", "16", "auto"):
                # The two vocabularies differ in kind, so that the prompt's tokens may.
                plain = self.answer(name, "--draft", "none")
                drafted = self.answer(name, "--draft-tokens", tokens)
                self.assertEqual(drafted["tokens"], plain["tokens"])
                self.assertNotIn("error", drafted["speculation"])
                if tokens != "auto":
                    self.assertGreater(drafted["speculation"]["drafted"], 0)
        shown = json.loads(self.succeeds("show", "directories", "--json", env=self.env))
        sizes = {layer["type"].rsplit(".", 1)[-1]: layer["bytes"] for layer in shown["layers"]}
        self.assertLess(sizes["draft"], pathlib.Path(self.head).stat().st_size / 2)

    def test_a_wrong_directory_leaves_nothing(self):
        model = self.file("Modelfile", f"FROM {self.directory(self.target)}\nDRAFT {self.directory(self.head)}\n"
                          .encode())
        for path, key, value in ((self.head, "rms_norm_eps", -1e-6), (self.target, "rms_norm_eps", -1e-6),
                                 (self.head, "vocab_size", 3), (self.target, "layer_types", ["full_attention"]),
                                 (self.head, "rope_parameters", []), (self.target, "hidden_size", 2.5)):
            file = pathlib.Path(self.directory(path)) / "config.json"
            config = json.loads(file.read_text())
            (config.get("text_config") or config)[key] = value
            file.write_text(json.dumps(config))
            self.fails(["create", "wrong", "-f", model], "config.json", f"{key} is ", env=self.env)
            self.assertFalse((self.dir / "store").exists())
            self.directory(path)

    def test_files(self):
        plain = self.answer(self.target)
        drafted = self.answer(self.target, "--draft", self.head, "--draft-tokens", "3")
        self.assertEqual(drafted["tokens"], plain["tokens"])
        self.assertGreater(drafted["speculation"]["drafted"], 0)

    def test_prefixes_do_not_depend_on_the_head(self):
        prompt = "seven small animals " * 40
        store = ("--store", str(self.dir / "kept"))
        plain = self.answer(self.target, *store, prompt=prompt)
        self.assertEqual(plain["reuse"]["tiers"]["disk"], 0)
        drafted = self.answer(self.target, *store, "--draft", self.head, prompt=prompt)
        self.assertGreater(drafted["reuse"]["tiers"]["disk"], 0)
        self.assertEqual(drafted["reuse"]["missed"], [])
        self.assertEqual(drafted["tokens"], plain["tokens"])

    def test_server(self):
        if not program.has_server():
            raise unittest.SkipTest("the server is not built")
        prompts = [f"{name} small animals" for name in ("seven", "eight", "nine", "ten")]
        with Server(self.target) as server:
            plain = server.answers(prompts)
            evaluated = server.evaluated_tokens()
        with Server(self.target, "--draft", self.head) as server:
            self.assertEqual(server.answers(prompts), plain)
            self.assertGreater(server.evaluated_tokens(), evaluated, "drafts are evaluated too")
            self.assertEqual(server.answers(prompts), plain, "from the prefixes that are left")

    def test_errors(self):
        other = self.make("other.gguf", "--arch", "gemma4-assistant", *SIZES, "--target-width",
                          "96")
        self.fails(["run", self.target, "-p", "x", "--draft", other], "other.gguf",
                   "96 values per token; this one has 128")
        self.fails(["run", self.target, "-p", "x", "--draft", "head"],
                   "such heads is 'gemma4-assistant'")
        self.fails(["run", self.head, "-p", "x"], "head.gguf", "a draft head and no model")
        self.fails(["run", self.model, "-p", "x", "--draft", self.head],
                   "'gemma4-assistant', the model is 'llama'")


if __name__ == "__main__":
    WRITE_HF = sys.argv.pop(3)
    program.main()
