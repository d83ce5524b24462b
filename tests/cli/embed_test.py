"""Tests `kvcache embed` and `kvcache rerank`, and a server with models that are made for these.

usage: embed_test.py KVCACHE MAKE_MODEL SUITE  (paths of the two programs)
"""

import json
import math
import pathlib
import signal
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "serve"))

import program
from program import CliTest, run
from server_process import Server

TEXTS = ["one two three", "four", "one two five six seven", "eight nine"]


def length(vector):
    return math.sqrt(sum(value * value for value in vector))


class EmbedTest(CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bert = cls.make("bert.gguf", "--arch", "bert", "--kv-heads", "4", "--context", "64", "--pooling", "1")
        cls.ranker = cls.make("rank.gguf", "--arch", "bert", "--kv-heads", "4", "--context", "64", "--pooling", "4",
                              "--labels", "1")

    def vectors(self, model, *flags, lines=TEXTS):
        out = self.succeeds("embed", model, *flags, text_in="\n".join(lines))
        return [[float(value) for value in line.split()] for line in out.splitlines()]

    def rows(self, *args, lines=TEXTS):
        return [json.loads(line) for line in self.succeeds(*args, "--json", text_in="\n".join(lines)).splitlines()]


class Vectors(EmbedTest):
    def test_a_line_is_an_input(self):
        for model in (self.bert, self.model):
            vectors = self.vectors(model)
            self.assertEqual({len(vector) for vector in vectors}, {64})
            for text, vector in zip(TEXTS, vectors):
                self.assertAlmostEqual(length(vector), 1, places=5)
                self.assertEqual(self.vectors(model, "-p", text), [vector])  # the same bits alone
                self.assertEqual(self.vectors(model, "--threads", "1", "-p", text), [vector])
            many = self.vectors(model, lines=TEXTS * 200)  # more than one call has
            self.assertEqual(many, vectors * 200)

    def test_forms(self):
        rows = self.rows("embed", self.bert)
        self.assertEqual([row["index"] for row in rows], [0, 1, 2, 3])
        self.assertEqual([row["embedding"] for row in rows], self.vectors(self.bert))
        self.assertTrue(all(row["tokens"] > 2 for row in rows))
        lines = ['"one two three"', '{"text": "four", "id": 3}', "", *map(json.dumps, TEXTS[2:])]
        self.assertEqual([row["line"] for row in self.rows("embed", self.bert, "--jsonl", lines=lines)], [1, 2, 4, 5])
        [alone] = self.rows("embed", self.bert, "-p", "a", lines=[])
        self.assertEqual(set(alone), {"index", "tokens", "embedding"})
        self.assertEqual(self.vectors(self.bert, "--jsonl", lines=lines), self.vectors(self.bert))
        path = self.file("lines", "\r\n".join(TEXTS).encode())
        self.assertEqual(self.vectors(self.bert, "-f", path, lines=[]), self.vectors(self.bert))

    def test_dimensions_and_lengths(self):
        [plain] = self.vectors(self.bert, "--no-normalize", "-p", "one two")
        [unit] = self.vectors(self.bert, "-p", "one two")
        [cut] = self.vectors(self.bert, "--dimensions", "8", "-p", "one two")
        self.assertGreater(abs(length(plain) - 1), 1e-3)
        self.assertEqual(len(cut), 8)
        for i, value in enumerate(unit):
            self.assertAlmostEqual(value, plain[i] / length(plain), places=5)
        for i, value in enumerate(cut):
            self.assertAlmostEqual(value, plain[i] / length(plain[:8]), places=5)

    def test_long_inputs(self):
        long = "one two three " * 100
        self.assertEqual(len(self.vectors(self.bert, "-p", long)), 1)
        self.fails(["embed", self.bert, "--no-truncate", "-p", long], "input 0", "64")

    def test_errors(self):
        self.fails(["embed"], "MODEL is required", status=2)
        self.fails(["embed", self.bert], "standard input has no text", text_in="\n\n")
        self.fails(["embed", self.bert, "--jsonl"], "standard input:2", text_in='"a"\nb\n')
        self.fails(["embed", self.bert, "-f", "/nonexistent"], "/nonexistent")
        self.fails(["embed", self.bert, "--dimensions", "65", "-p", "a"], "65", "64")
        self.fails(["embed", self.bert, "--dimensions", "0", "-p", "a"], "--dimensions", status=2)
        self.fails(["embed", self.bert, "-p", "a", "-f", "b"], "--prompt", status=2)
        self.fails(["embed", "no-such-model", "--offline", "-p", "a"], "no model")
        self.fails(["embed", self.ranker, "-p", "a"], "rerank")
        self.fails(["run", self.bert, "-p", "a"], "made for embeddings", "kvcache embed")
        self.fails(["run", self.ranker, "-p", "a"], "made for ranks", "kvcache rerank")
        decoder = self.make("decoder.gguf", "--arch", "qwen3", "--pooling", "3")
        self.fails(["run", decoder, "-p", "a"], "made for embeddings", "kvcache embed")

    def test_ctrl_c(self):
        path = self.file("many", b"one two three four five\n" * 300_000)
        process = subprocess.Popen([program.KVCACHE, "embed", self.bert, "-f", path], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn("of 300000 inputs", err)


class Ranks(EmbedTest):
    def test_documents_are_sorted(self):
        rows = self.rows("rerank", self.ranker, "--query", "one two")
        self.assertEqual(sorted(row["index"] for row in rows), [0, 1, 2, 3])
        scores = [row["relevance_score"] for row in rows]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertGreater(len(set(scores)), 1)
        for row in rows:
            self.assertEqual(row["text"], TEXTS[row["index"]])
            self.assertEqual(row["line"], row["index"] + 1)
        out = self.succeeds("rerank", self.ranker, "--query", "one two", "--top", "2", text_in="\n".join(TEXTS))
        self.assertEqual([line.split("\t")[1] for line in out.splitlines()], [row["text"] for row in rows[:2]])
        self.assertEqual([float(line.split("\t")[0]) for line in out.splitlines()], scores[:2])
        alone = self.rows("rerank", self.ranker, "--query", "one two", lines=TEXTS[2:3])
        self.assertEqual(alone[0]["relevance_score"],
                         next(row for row in rows if row["index"] == 2)["relevance_score"])

    def test_errors(self):
        self.fails(["rerank", self.ranker], "--query is required", status=2)
        self.fails(["rerank", self.bert, "--query", "a"], "not made for ranks", text_in="a\n")
        self.fails(["rerank", self.ranker, "--query", "a"], "has no text", text_in="")


class Served(EmbedTest):
    def post(self, server, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def test_models_for_embeddings(self):
        Server.program = program.KVCACHE
        server = Server("--store", "none", models=(self.model, self.bert, self.ranker))
        self.addCleanup(server.kill)
        answer = self.post(server, "/v1/embeddings", {"model": "bert", "input": TEXTS})
        vectors = [row["embedding"] for row in answer["data"]]
        self.assertEqual(vectors, [[*vector] for vector in self.vectors(self.bert)])
        self.assertEqual(self.post(server, "/api/embed", {"input": TEXTS})["model"], "bert")
        self.assertEqual(self.post(server, "/api/embed", {"model": "bert", "input": TEXTS})["embeddings"], vectors)
        rows = self.rows("rerank", self.ranker, "--query", "one two")
        ranks = self.post(server, "/v1/rerank", {"query": "one two", "documents": TEXTS})
        self.assertEqual(ranks["model"], "rank")
        self.assertEqual(ranks["results"], [{key: row[key] for key in ("index", "relevance_score")} for row in rows])
        tokens = self.post(server, "/tokenize", {"model": "bert", "content": TEXTS[0], "add_special": True})["tokens"]
        [of_tokens] = self.post(server, "/v1/embeddings", {"model": "bert", "input": tokens})["data"]
        self.assertEqual(of_tokens["embedding"], vectors[0])
        bare = self.post(server, "/tokenize", {"model": "bert", "content": TEXTS[0]})["tokens"]
        self.assertEqual(tokens[1:1 + len(bare)], bare)
        self.assertEqual(self.post(server, "/detokenize", {"model": "bert", "tokens": bare})["content"].strip(), TEXTS[0])
        shown = self.post(server, "/api/show", {"model": "bert"})["model_info"]
        self.assertEqual((shown["bert.embedding_length"], shown["bert.context_length"]), (64, 64))
        for name, word in (("bert", "embedding"), ("rank", "rerank"), ("random", "completion")):
            self.assertIn(word, self.post(server, "/api/show", {"model": name})["capabilities"])
        with self.assertRaises(urllib.error.HTTPError) as raised:
            self.post(server, "/v1/chat/completions", {"model": "bert", "messages": [{"role": "user", "content": "a"}]})
        self.assertEqual(raised.exception.code, 400)

    def test_a_stored_context_above_the_weights(self):
        env = {"KVCACHE_MODELS": str(self.dir / "store")}
        modelfile = self.file("Modelfile", f"FROM {self.bert}\nPARAMETER num_ctx 8192\n".encode())
        self.succeeds("create", "wide", "-f", modelfile, env=env)
        Server.program = program.KVCACHE
        server = Server("--store", "none", models=("wide",), environment=env)
        self.addCleanup(server.kill)
        answer = self.post(server, "/v1/embeddings", {"model": "wide", "input": TEXTS})
        self.assertEqual([row["embedding"] for row in answer["data"]], self.vectors(self.bert))
        long = self.post(server, "/api/embed", {"model": "wide", "input": "one two three " * 100})
        self.assertEqual(long["prompt_eval_count"], 64)
        self.assertEqual(self.post(server, "/api/show", {"model": "wide"})["model_info"]["bert.context_length"], 64)

    def test_a_model_for_embeddings_alone(self):
        Server.program = program.KVCACHE
        server = Server("--store", "none", models=(self.bert,))
        self.addCleanup(server.kill)
        self.assertEqual(len(self.post(server, "/v1/embeddings", {"input": "one"})["data"]), 1)
        for path in ("/state", "/slots", "/metrics", "/v1/models", "/api/tags", "/api/ps"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=60).close()


if __name__ == "__main__":
    program.main()
