"""Tests LoRA adapters: --adapter of run and eval, ADAPTER in Modelfiles, and `kvcache serve`'s models.

usage: adapters_test.py KVCACHE MAKE_MODEL  (paths of the two programs)
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import numpy as np

import adapter_file
import program
import redis_process
from program import CliTest

GREEDY = ("-p", "seven", "--temp", "0", "-n", "12", "--json")
TOKENS = "3,5,8,13,21,34,55"


class AdapterTest(CliTest):
    def setUp(self):
        self.place = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
        self.env = {"KVCACHE_MODELS": str(self.place / "models")}
        about = json.loads(self.succeeds("inspect", self.model, "--json", "--tensors"))
        self.shapes = {each["name"]: tuple(each["dims"][::-1]) for each in about["tensors"]
                       if len(each["dims"]) == 2 and each["dims"][1] > 1 and "token_embd" not in each["name"]}
        self.first = self.adapter("first.gguf", 1)
        self.second = self.adapter("second.gguf", 2)

    def adapter(self, name, seed):
        path = self.place / name
        pairs = adapter_file.random_pairs(self.shapes, 2, seed, 0.5)
        adapter_file.write_gguf(path, "llama", pairs, 2.0)
        return str(path)

    def eval(self, *flags, **options):
        out = self.place / "logits.npy"
        self.succeeds("eval", *(flags or [self.model]), "--tokens", TOKENS, "--logits", out, **options)
        return np.load(out)

    def tokens(self, *args):
        return json.loads(self.succeeds("run", *args, *GREEDY, env=self.env))["tokens"]


class Flags(AdapterTest):
    def test_scales_and_several_adapters(self):
        plain = self.eval(self.model)
        with_first = self.eval(self.model, "--adapter", self.first)
        self.assertFalse(np.array_equal(plain, with_first))
        same = self.eval(self.model, "--adapter", f"{self.first}:1.0")
        self.assertTrue(np.array_equal(with_first, same))
        half = self.eval(self.model, "--adapter", f"{self.first}:0.5")
        self.assertFalse(np.array_equal(half, with_first))
        none = self.eval(self.model, "--adapter", f"{self.first}:0")
        self.assertTrue(np.array_equal(none, plain))
        both = ("--adapter", self.first, "--adapter", f"{self.second}:-1")
        self.assertFalse(np.array_equal(self.eval(self.model, *both), with_first))
        for flags in (("--prefill-chunk", 1), ("--threads", 1), ("--resume-at", 4),
                      ("--resume-at", 4, "--via", "memory")):
            again = self.eval(self.model, *both, *map(str, flags))
            self.assertTrue(np.array_equal(again, self.eval(self.model, *both)), flags)

    def test_run(self):
        plain = self.tokens(self.model)
        self.assertNotEqual(self.tokens(self.model, "--adapter", self.first), plain)
        self.assertEqual(self.tokens(self.model, "--adapter", f"{self.first}:0"), plain)
        store = ("--store", str(self.place / "store"))
        with_store = [self.tokens(self.model, *flags, *store) for flags in
                      (("--adapter", self.first), (), ("--adapter", self.second), ("--adapter", self.first))]
        self.assertEqual(with_store, [self.tokens(self.model, *flags) for flags in
                                      (("--adapter", self.first), (), ("--adapter", self.second),
                                       ("--adapter", self.first))])

    def test_peft(self):
        rng = np.random.default_rng(3)
        outputs, inputs = self.shapes["blk.0.attn_v.weight"]
        a, b = rng.uniform(-1, 1, (2, inputs)), rng.uniform(-1, 1, (outputs, 2))
        folder = self.place / "peft"
        adapter_file.write_peft(folder, {"model.layers.0.self_attn.v_proj": (a, b)}, 2, 4)
        named = self.place / "peft:2"  # a name that is there is no name with a scale
        adapter_file.write_peft(named, {"model.layers.0.self_attn.v_proj": (a, b)}, 2, 4)
        same = self.place / "same.gguf"
        name = "blk.0.attn_v.weight"
        adapter_file.write_gguf(same, "llama", {name + ".lora_a": a, name + ".lora_b": b}, 4)
        of_peft = self.eval(self.model, "--adapter", folder)
        self.assertTrue(np.array_equal(of_peft, self.eval(self.model, "--adapter", same)))
        self.assertFalse(np.array_equal(of_peft, self.eval(self.model)))
        self.assertTrue(np.array_equal(of_peft, self.eval(self.model, "--adapter", named)))

    def test_bench(self):
        for flags in (("--adapter", self.first), ("--adapter", self.first, "--adapter", f"{self.second}:0.5", "--slots", "2")):
            report = json.loads(self.succeeds("bench", "reuse", "--quick", "--json", "--model", self.model, *flags))
            self.assertEqual(report["requests"], 500)
        self.fails(["bench", "reuse", "--quick", "--adapter", self.first], "--adapter needs a model", status=2)
        self.fails(["bench", "reuse", "--quick", "--model", self.model, "--adapter", self.model], "general.type")

    def test_errors(self):
        def fails(adapter, *words, status=1):
            self.fails(["run", self.model, "-p", "x", "--adapter", str(adapter)], *words, status=status)
        fails("missing.gguf", "missing.gguf")
        fails(self.model, "general.type")
        fails(f"{self.first}:nan", "must be from -10000 to 10000", status=2)
        fails(f"{self.first}:1e37", "must be from -10000 to 10000", status=2)
        fails(":0.5", "names no file", status=2)
        (self.place / "empty").mkdir()
        fails(self.place / "empty", "adapter_config.json")
        adapter_file.write_gguf(self.place / "wrong.gguf", "qwen3",
                                adapter_file.random_pairs(self.shapes, 2, 1), 2.0)
        fails(self.place / "wrong.gguf", "wrong.gguf", "'qwen3'", "'llama'")


class Modelfiles(AdapterTest):
    def create(self, name, text):
        self.succeeds("create", name, "-f", self.file("Modelfile", text.encode()), env=self.env)

    def test_create_show_run(self):
        self.create("pirate", f"FROM {self.model}\nADAPTER {self.first}\n")
        self.assertEqual(self.tokens("pirate"), self.tokens(self.model, "--adapter", self.first))
        self.assertEqual(self.tokens("pirate", "--adapter", f"{self.first}:0"), self.tokens(self.model))
        shown = json.loads(self.succeeds("show", "pirate", "--json", env=self.env))
        kinds = [layer["type"] for layer in shown["layers"]]
        self.assertIn("application/vnd.ollama.image.adapter", kinds)
        self.assertEqual(len(shown["adapters"]), 1)
        self.assertEqual(pathlib.Path(shown["adapters"][0]).read_bytes(), pathlib.Path(self.first).read_bytes())
        self.assertIn("\nADAPTER ", self.succeeds("show", "pirate", env=self.env))
        self.succeeds("show", "pirate", "--verify", env=self.env)
        # A model that starts from it keeps the adapter; one with its own ADAPTER has that instead.
        self.create("same", "FROM pirate\nSYSTEM x\n")
        self.assertEqual(json.loads(self.succeeds("show", "same", "--json", env=self.env))["adapters"],
                         shown["adapters"])
        self.create("poet", f"FROM pirate\nADAPTER {self.second}\n")
        self.assertEqual(self.tokens("poet"), self.tokens(self.model, "--adapter", self.second))

    def test_copies_and_removals(self):
        def blobs():
            return {path.name for path in (self.place / "models" / "blobs").iterdir() if path.name.startswith("sha256-")}

        def blob_of(path):
            return "sha256-" + hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
        self.create("plain", f"FROM {self.model}\n")
        of_plain = blobs()
        self.create("pirate", f"FROM {self.model}\nADAPTER {self.first}\n")
        self.assertIn(blob_of(self.first), blobs() - of_plain)
        self.succeeds("cp", "pirate", "copy", env=self.env)
        with_first = self.tokens(self.model, "--adapter", self.first)
        self.succeeds("rm", "pirate", env=self.env)
        self.assertEqual(self.tokens("copy"), with_first)
        self.succeeds("rm", "plain", env=self.env)
        self.assertEqual(self.tokens("copy"), with_first)
        self.succeeds("show", "copy", "--verify", env=self.env)
        self.create("poet", f"FROM copy\nADAPTER {self.second}\n")
        self.succeeds("rm", "copy", env=self.env)
        self.assertNotIn(blob_of(self.first), blobs())
        self.assertTrue({blob_of(self.second), blob_of(self.model)} <= blobs())
        self.assertEqual(self.tokens("poet"), self.tokens(self.model, "--adapter", self.second))
        self.succeeds("rm", "poet", env=self.env)
        self.assertEqual(blobs(), set())

    def test_a_peft_directory_becomes_a_file(self):
        outputs, inputs = self.shapes["blk.1.attn_q.weight"]
        rng = np.random.default_rng(4)
        halves = rng.uniform(-1, 1, (2, inputs)), rng.uniform(-1, 1, (outputs, 2))
        adapter_file.write_peft(self.place / "peft", {"model.layers.1.self_attn.q_proj": halves}, 2, 4)
        self.create("made", f"FROM {self.model}\nADAPTER {self.place / 'peft'}\n")
        blob = json.loads(self.succeeds("show", "made", "--json", env=self.env))["adapters"][0]
        self.assertEqual(pathlib.Path(blob).read_bytes()[:4], b"GGUF")
        self.assertEqual(self.tokens("made"), self.tokens(self.model, "--adapter", str(self.place / "peft")))

    def test_wrong_adapters_leave_nothing(self):
        def fails(text, *words):
            self.fails(["create", "x", "-f", self.file("Modelfile", text.encode())], *words, env=self.env)
            self.assertFalse((self.place / "models" / "manifests").exists())
        fails(f"FROM {self.model}\nADAPTER /nonexistent.gguf\n", "ADAPTER /nonexistent.gguf")
        fails(f"FROM {self.model}\nADAPTER {self.model}\n", "general.type")
        self.shapes = {"blk.0.attn_q.weight": (5, 7)}
        fails(f"FROM {self.model}\nADAPTER {self.adapter('wrong.gguf', 1)}\n", "does not fit the base")
        # The model has the tensor, and multiplies by no such matrix.
        self.shapes = {"blk.0.attn_norm.weight": (1, 64)}
        fails(f"FROM {self.model}\nADAPTER {self.adapter('norm.gguf', 1)}\n", "blk.0.attn_norm.weight", "is no matrix")


class Redis(AdapterTest):
    """Machines share prefixes through Redis: those of an adapter with its own texts only."""

    def test_an_adapter_shares_with_itself_alone(self):
        _, port = redis_process.start(self, self.place)
        prompt = " ".join(f"w{i}" for i in range(35))

        def ask(*flags):
            out = self.succeeds("run", self.model, "-p", prompt, "--raw", "--temp", "0", "-n", "6", "--json", *flags)
            return json.loads(out)
        choices = ((), ("--adapter", self.first), ("--adapter", f"{self.first}:0.5"), ("--adapter", self.second))
        alone = [ask("--store", "none", *flags)["tokens"] for flags in choices]
        self.assertEqual(len(set(map(tuple, alone))), len(choices))
        for known in (False, True):
            for flags, tokens in zip(choices, alone):
                answer = ask("--store", f"redis://127.0.0.1:{port}", *flags)
                self.assertEqual(answer["tokens"], tokens, flags)
                remote = answer["reuse"]["tiers"]["remote"]
                self.assertEqual(remote > answer["prompt_tokens"] / 2, known, (flags, remote))
                self.assertEqual(remote > 0, known, (flags, remote))


class EmbedderTest(AdapterTest):
    def setUp(self):
        super().setUp()
        flags = ("--arch", "bert", "--kv-heads", "4", "--context", "64")
        self.bert = self.make("bert.gguf", *flags, "--pooling", "1")
        self.ranker = self.make("rank.gguf", *flags, "--pooling", "4", "--labels", "1")
        self.of_bert = self.place / "of-bert.gguf"
        about = json.loads(self.succeeds("inspect", self.bert, "--json", "--tensors"))
        shapes = {each["name"]: tuple(each["dims"][::-1]) for each in about["tensors"]
                  if each["name"].startswith("blk.") and len(each["dims"]) == 2 and each["dims"][1] > 1}
        adapter_file.write_gguf(self.of_bert, "bert", adapter_file.random_pairs(shapes, 2, 1, 0.5), 2.0)

    def create(self, name, text):
        self.succeeds("create", name, "-f", self.file("Modelfile", text.encode()), env=self.env)

    def vector(self, model, *flags):
        return [float(value) for value in self.succeeds("embed", model, *flags, "-p", "one two", env=self.env).split()]

    def scores(self, model, *flags):
        out = self.succeeds("rerank", model, *flags, "--query", "one", "--json", text_in="two\nthree four\n",
                            env=self.env)
        return {row["text"]: row["relevance_score"] for row in map(json.loads, out.splitlines())}


class Embeddings(EmbedderTest):
    def test_encoders_and_decoders(self):
        for model, adapter in ((self.bert, self.of_bert), (self.model, self.first)):
            plain = self.vector(model)
            adapted = self.vector(model, "--adapter", adapter)
            self.assertNotEqual(adapted, plain)
            self.assertEqual(self.vector(model, "--adapter", f"{adapter}:1.0", "--threads", "1"), adapted)
            self.assertEqual(self.vector(model, "--adapter", f"{adapter}:0"), plain)
            self.assertNotIn(self.vector(model, "--adapter", f"{adapter}:0.5"), (plain, adapted))

    def test_ranks(self):
        plain = self.scores(self.ranker)
        adapted = self.scores(self.ranker, "--adapter", self.of_bert)
        self.assertTrue(all(adapted[text] != plain[text] for text in plain))

    def test_stored_models(self):
        for name, model, adapter in (("e", self.bert, self.of_bert), ("d", self.model, self.first)):
            self.create(name, f"FROM {model}\nADAPTER {adapter}\n")
            self.assertEqual(self.vector(name), self.vector(model, "--adapter", adapter))
            self.assertEqual(self.vector(name, "--adapter", f"{adapter}:0"), self.vector(model))
        self.create("r", f"FROM {self.ranker}\nADAPTER {self.of_bert}\n")
        self.assertEqual(self.scores("r"), self.scores(self.ranker, "--adapter", self.of_bert))

    def test_errors(self):
        self.fails(["embed", self.bert, "-p", "a", "--adapter", self.first], "first.gguf", "'llama'", "'bert'")
        self.fails(["embed", self.bert, "-p", "a", "--adapter", f"{self.of_bert}:1e9"], "must be from -10000", status=2)
        text = f"FROM {self.bert}\nADAPTER {self.first}\n"
        self.fails(["create", "x", "-f", self.file("Modelfile", text.encode())], f"ADAPTER {self.first}", "'llama'",
                   env=self.env)


class Served(EmbedderTest):
    def serve(self, *flags):
        server = subprocess.Popen([program.KVCACHE, "serve", "--port", "0", "--log", "off", *flags],
                                  stderr=subprocess.PIPE, text=True, env={**os.environ, **self.env})
        self.addCleanup(lambda: (server.terminate(), server.communicate()))
        for line in server.stderr:
            if " at http" in line:
                return line.split()[-1]
        self.fail("the server ended")

    def ask(self, base, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(base + path, data), timeout=60) as answer:
            return json.load(answer)

    def test_names_and_scales(self):
        base = self.serve(self.model, "--adapter", f"{self.first}:0", "--adapter", f"{self.second}:0.5")
        names = [each["id"] for each in self.ask(base, "/v1/models")["data"]]
        self.assertEqual(names[1:], ["first", "second"])
        scales = self.ask(base, "/lora-adapters")
        self.assertEqual([(each["path"], each["scale"]) for each in scales], [("first", 0), ("second", 0.5)])

        def text(model, **more):
            return self.ask(base, "/completion", {"model": model, "prompt": "seven", "n_predict": 12,
                                                  "temperature": 0, **more})["content"]
        second = text(names[0])
        self.assertEqual(text("second"), second)
        self.assertNotEqual(text("first"), second)
        self.assertEqual(text(names[0], lora=[{"id": 0, "scale": 1}]), text("first"))
        # A model that is made from an adapter has the adapter.
        self.ask(base, "/api/create", {"model": "made", "from": "first", "stream": False})
        self.assertEqual(text("made"), text("first"))
        self.ask(base, "/api/copy", {"source": "first", "destination": "copied"})
        self.assertEqual(text("copied"), text("first"))
        for name in ("second", names[0]):
            with self.assertRaises(urllib.error.HTTPError) as raised:
                self.ask(base, "/api/copy", {"source": name, "destination": "x"})
            self.assertEqual(raised.exception.code, 400)
            self.assertIn("'second' with the scale 0.5", raised.exception.read().decode())

    def test_embeddings(self):
        self.create("stored", f"FROM {self.ranker}\nADAPTER {self.of_bert}\n")
        base = self.serve(self.bert, self.model, "stored", "--adapter", f"{self.of_bert}:0")

        def vector(model, **more):
            return self.ask(base, "/v1/embeddings", {"model": model, "input": "one two", **more})["data"][0]["embedding"]
        plain, adapted = self.vector(self.bert), self.vector(self.bert, "--adapter", self.of_bert)
        self.assertEqual(vector("bert"), plain)
        self.assertEqual(vector("of-bert"), adapted)
        self.assertEqual(vector("bert", lora=[{"id": 0, "scale": 1}]), adapted)
        self.assertEqual(self.ask(base, "/api/embed", {"model": "of-bert", "input": "one two"})["embeddings"], [adapted])
        self.ask(base, "/lora-adapters", [{"id": 0, "scale": 1}])
        self.assertEqual(vector("bert"), adapted)
        self.assertEqual(vector("bert", lora=[]), plain)
        ranks = self.ask(base, "/v1/rerank", {"model": "stored", "query": "one", "documents": ["two", "three four"]})
        self.assertEqual({("two", "three four")[each["index"]]: each["relevance_score"] for each in ranks["results"]},
                         self.scores("stored"))
        self.ask(base, "/api/copy", {"source": "of-bert", "destination": "copied"})
        self.assertEqual(vector("copied"), adapted)


if __name__ == "__main__":
    program.main()
