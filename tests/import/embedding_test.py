"""Tests models for embeddings and ranks from the command line: directories in Hugging Face's layout become stored models
that embed and rank, also in quantised types, with adapters in PEFT's form beside them.

usage: embedding_test.py KVCACHE MAKE_MODEL WRITE_HF  (paths of the programs)
"""

import json
import math
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import numpy as np  # noqa: E402  (the path comes first)

import adapter_file  # noqa: E402
import program  # noqa: E402
from program import CliTest  # noqa: E402

WRITE_HF = ""
TEXTS = "ab c\nw7 w8 w9\nhello\n"


class Embedding(CliTest):
    def setUp(self):
        self.env = {"KVCACHE_MODELS": str(self.dir / "models")}

    def create(self, name, arch, *flags, more=(), modelfile=""):
        made = self.make(f"{name}.gguf", "--arch", arch, "--kv-heads", "4", "--context", "64", "--vocab", "601",
                         "--type", "f32", *flags)
        folder = self.dir / f"hf-{name}"
        subprocess.run([WRITE_HF, made, folder], check=True)
        text = f"FROM {folder}\n{modelfile}"
        self.succeeds("create", name, "-f", self.file("Modelfile", text.encode()), *more, env=self.env)

    def vectors(self, name):
        out = self.succeeds("embed", name, "--json", text_in=TEXTS, env=self.env)
        return np.array([json.loads(line)["embedding"] for line in out.splitlines()])

    def test_encoders(self):
        for arch, flags in (("bert", ("--pooling", "2")), ("nomic-bert", ("--pooling", "1")),
                            ("modern-bert", ("--pooling", "1", "--window", "20"))):
            self.create(arch, arch, *flags)
            vectors = self.vectors(arch)
            self.assertEqual(vectors.shape, (3, 64))
            self.assertTrue(np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5))
            self.assertIn(arch, self.succeeds("show", arch, "--json", env=self.env))
            self.create(f"{arch}-8", arch, *flags, more=("--quantize", "q8_0"))
            cosines = (vectors * self.vectors(f"{arch}-8")).sum(axis=1)
            self.assertGreater(cosines.min(), 0.99, arch)

    def test_rerankers(self):
        self.create("ranker", "bert", "--pooling", "4", "--labels", "1")
        out = self.succeeds("rerank", "ranker", "--query", "ab", "--json", text_in=TEXTS, env=self.env)
        rows = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(sorted(row["index"] for row in rows), [0, 1, 2])
        self.assertTrue(all(math.isfinite(row["relevance_score"]) for row in rows))

    def test_peft(self):
        rng = np.random.default_rng(5)
        pair = rng.uniform(-1, 1, (2, 64)), rng.uniform(-1, 1, (64, 2))
        folder = self.dir / "peft"
        adapter_file.write_peft(folder, {"encoder.layer.0.attention.self.query": pair}, 2, 4)
        self.create("plain", "bert", "--pooling", "2")
        self.create("adapted", "bert", "--pooling", "2", modelfile=f"ADAPTER {folder}\n")
        plain, adapted = self.vectors("plain"), self.vectors("adapted")
        self.assertGreater(np.abs(plain - adapted).max(), 1e-3)
        same = self.dir / "same.gguf"
        name = "blk.0.attn_q.weight"
        adapter_file.write_gguf(same, "bert", {name + ".lora_a": pair[0], name + ".lora_b": pair[1]}, 4)
        out = self.succeeds("embed", "plain", "--json", "--adapter", str(same), text_in=TEXTS, env=self.env)
        self.assertEqual([json.loads(line)["embedding"] for line in out.splitlines()], adapted.tolist())


if __name__ == "__main__":
    WRITE_HF = sys.argv.pop(3)
    program.main()
