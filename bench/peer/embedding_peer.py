"""Compares the embedding of 1,000 short texts with llama.cpp's, in one run and in turns.

  embedding_peer.py --bench BUILD/bench/embedding_bench --make-model BUILD/tools/make_model/kvcache-make-model
                    [--shape small|base|qwen3] [--type f16] [--threads 2] [--rounds 3] [--inputs 1000] [--shared 0]

Makes a random model of a published shape: small (MiniLM, BGE small: 12 layers of 384), base (BERT, BGE base: 12 of
768), qwen3 (Qwen3-Embedding 0.6B). Inputs have 12 to 36 random tokens; with --shared N they begin with the same N.
Both engines get the same tokens. llama.cpp gets as many inputs in a batch as its batch of 512 tokens holds, up to 64,
through its C library, with flash attention as it chooses. The cosines of all vectors are checked.
"""

import argparse
import ctypes as c
import json
import pathlib
import subprocess
import sys
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests/oracle/assistant"))

import llama_cpp

LIBRARIES = HERE.parents[1] / "tests/oracle/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"
SHAPES = {
    "small": ("bert", ["--layers", 12, "--width", 384, "--heads", 12, "--ffn", 1536, "--vocab", 30522, "--context", 512,
                       "--pooling", 2]),
    "base": ("bert", ["--layers", 12, "--width", 768, "--heads", 12, "--ffn", 3072, "--vocab", 30522, "--context", 512,
                      "--pooling", 2]),
    "qwen3": ("qwen3", ["--layers", 28, "--width", 1024, "--heads", 16, "--kv-heads", 8, "--head-dim", 128, "--ffn", 3072,
                        "--vocab", 151669, "--context", 32768, "--rope-base", 1000000, "--tied", "--pooling", 3]),
}
BATCH, SEQUENCES = 512, 64
COSINE = {"f32": 0.9999, "f16": 0.9999, "bf16": 0.999}
ROUGH_COSINE = 0.98  # of types that quantise activations, where both engines have noise of their own


def make_inputs(count, shared, vocab):
    random = np.random.default_rng(1)
    first = [1, *random.integers(3, vocab, max(shared - 1, 0)).tolist()]
    return [first + random.integers(3, vocab, random.integers(11, 36)).tolist() for _ in range(count)]


class Peer:
    def __init__(self, model, threads):
        self.library = llama_cpp.Library(LIBRARIES)
        self.embedding = self.library._call("llama_get_embeddings_seq", c.POINTER(c.c_float), c.c_void_p, c.c_int32)
        self.memory = self.library._call("llama_get_memory", c.c_void_p, c.c_void_p)
        self.clear = self.library._call("llama_memory_clear", None, c.c_void_p, c.c_bool)
        self.model = self.library.load(str(model).encode(), self.library.model_params())
        self.size = self.library.hidden_size(self.model)
        self.encode = self.library._call("llama_encode", c.c_int32, c.c_void_p, llama_cpp.Batch)
        params = self.library.context_params()
        params.n_ctx = params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = SEQUENCES
        params.n_threads = params.n_threads_batch = threads
        params.embeddings = params.kv_unified = True
        self.context = self.library.make_context(self.model, params)
        if not self.context:
            sys.exit("llama.cpp made no context")
        self.batch = self.library.make_batch(BATCH, 0, 1)

    def embed(self, inputs):
        vectors = np.empty((len(inputs), self.size), np.float32)
        at = 0
        while at < len(inputs):
            count = self._fill(inputs, at)
            has_cache = self.memory(self.context)
            if has_cache:
                self.clear(has_cache, False)
            if (self.library.decode if has_cache else self.encode)(self.context, self.batch) != 0:
                sys.exit("llama.cpp failed to evaluate a batch")
            for i in range(count):
                vectors[at + i] = np.ctypeslib.as_array(self.embedding(self.context, i), (self.size,))
            at += count
        return vectors

    def _fill(self, inputs, at):
        batch, row, count = self.batch, 0, 0
        for tokens in inputs[at:at + SEQUENCES]:
            if row + len(tokens) > BATCH:
                break
            for position, token in enumerate(tokens):
                batch.token[row], batch.position[row] = token, position
                batch.sequences[row], batch.sequence[row][0], batch.logits[row] = 1, count, 1
                row += 1
            count += 1
        batch.count = row
        return count


def ask_ours(args, model, inputs_path, vectors_path):
    json_path = vectors_path.with_suffix(".json")
    subprocess.run([args.bench, "--model", model, "--read-inputs", inputs_path, "--vectors", vectors_path, "--rounds", "1",
                    "--threads", str(args.threads), "--clock", args.clock, "--json", json_path], check=True, stdout=subprocess.DEVNULL)
    return json.loads(json_path.read_text())["cases"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--make-model", required=True)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/embedding-peer"))
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--type", default="f16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--shared", type=int, default=0)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                        help="cpu: the time that one thread ran, on a busy machine; needs --threads 1")
    args = parser.parse_args()
    seconds = time.thread_time if args.clock == "cpu" else time.perf_counter
    args.work.mkdir(parents=True, exist_ok=True)
    architecture, flags = SHAPES[args.shape]
    model = args.work / f"{args.shape}-{args.type}.gguf"
    subprocess.run([args.make_model, "--arch", architecture, "--type", args.type, *map(str, flags), model], check=True)
    vocab = flags[flags.index("--vocab") + 1]
    inputs = make_inputs(args.inputs, args.shared, vocab)
    inputs_path, vectors_path = args.work / "inputs.txt", args.work / "vectors.f32"
    inputs_path.write_text("".join(",".join(map(str, tokens)) + "\n" for tokens in inputs))
    peer = Peer(model, args.threads)
    peer.embed(inputs[:64])  # the weights' first use
    ours, theirs = [], []
    for _ in range(args.rounds):
        case = ask_ours(args, model, inputs_path, vectors_path)
        ours.append(case["median_ms"] / 1000)
        start = seconds()
        vectors = peer.embed(inputs)
        theirs.append(seconds() - start)
        print(f"ours {ours[-1]:.3f} s, llama.cpp {theirs[-1]:.3f} s", flush=True)
    own = np.fromfile(vectors_path, np.float32).reshape(len(inputs), -1).astype(float)
    vectors = vectors.astype(float)
    cosine = (own * vectors).sum(axis=1) / np.linalg.norm(own, axis=1) / np.linalg.norm(vectors, axis=1)
    print(f"{args.shape} {args.type}, {args.threads} threads, {len(inputs)} inputs of {case['tokens']} tokens, "
          f"{case['reused_tokens']} reused: {np.median(theirs) / np.median(ours):.2f} times llama.cpp's speed; "
          f"cosine at least {cosine.min():.6f}")
    if cosine.min() < COSINE.get(args.type, ROUGH_COSINE):
        sys.exit("the vectors differ from llama.cpp's")


if __name__ == "__main__":
    main()
