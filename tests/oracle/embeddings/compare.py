"""Compares vectors and scores with llama.cpp's and with a float64 pass, on random-weight models.

For each variant and weight type, the test makes a model with tools/make_model and embeds random tokens of several
lengths. The bounds:

  vectors   the cosine of ours with llama.cpp's and with float64's is at least 0.9999 for weights of f32, f16 and bf16.
            For types whose activations are quantised the mean of 1 - cosine with float64 may be 1.5 times llama.cpp's
            instead: both have noise of one size, and the means of nine inputs differ by some tenths.
            f32 is within 1e-9 of float64 for encoders, whose attention is in f32 too.
  scores    the same with errors relative to the largest score: 1e-2, and 1.5 times llama.cpp's largest error plus 1e-2
  exact     the bits of an input alone, of all inputs in one call, on one thread and on two, in passes of 7, 64 and 512
            tokens are equal

--page compares the table of docs/embedding_models.md with the variants that passed; --write writes it.
"""

import argparse
import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))
sys.path.insert(0, str(HERE.parent))

import models_page
import reference_encoders
from random_models import Failure, run

SKIPPED = 77
LENGTHS = (1, 5, 40, 333, 17, 130)
BOS = 1
SHARED = 70  # tokens that some inputs begin with
COSINE = 0.9999
EXACT = 1e-9  # 1 - cosine of encoders of f32
ALONE = 1e-2  # 1 - cosine of quantised types without llama.cpp, twice the largest in other variants


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    architecture: str
    pooling: int
    flags: tuple = ()
    layers: int = 2
    heads: tuple = (4, 4)
    width: int = 256
    ffn: int = 512
    alone: str = ""  # the reason why only float64 is compared, without llama.cpp


RANK = ("--labels", 1)
VARIANTS = [
    Variant("bert", "bert", 2),
    Variant("bert-mean", "bert", 1, width=288, heads=(9, 9), ffn=480),
    Variant("bert-rank", "bert", 4, RANK),
    Variant("jina-bert-v2", "jina-bert-v2", 1, width=288, heads=(9, 9), ffn=480),
    Variant("jina-bert-v2-code", "jina-bert-v2", 1, ("--ungated",)),
    Variant("jina-bert-v3", "jina-bert-v3", 1),
    Variant("nomic-bert", "nomic-bert", 1, ("--rope-base", 1000)),
    Variant("nomic-bert-moe", "nomic-bert-moe", 1, ("--experts", 8, "--experts-used", 2), layers=4),
    # Texts are longer than a window. The third layer after a full one has one, too.
    Variant("modern-bert", "modern-bert", 2, ("--window", 100, "--rope-base", 160000), layers=4),
    Variant("modern-bert-silu", "modern-bert", 1, ("--ungated",), layers=2),
    Variant("modern-bert-rank", "modern-bert", 4, (*RANK, "--window", 21), layers=3),
    Variant("gemma-embedding", "gemma-embedding", 1, ("--window", 100, "--rope-base", 1000000), layers=6, heads=(4, 2)),
    Variant("gemma-embedding-dense", "gemma-embedding", 1, ("--window", 33, "--dense", 384), layers=2, heads=(4, 1),
            alone="llama.cpp aborts: its result has no buffer"),
    Variant("qwen3", "qwen3", 3, ("--rope-base", 1000000), heads=(4, 2)),
    Variant("qwen3-mean", "qwen3", 1, ("--rope-base", 1000000), heads=(4, 2)),
    Variant("qwen3-rank", "qwen3", 4, ("--labels", 2, "--rope-base", 1000000), heads=(4, 2)),
]
TYPES = ("f32", "f16", "q8_0", "q4_k_m")
VOCABULARY = 700
CAUSAL = ("qwen3",)


@dataclasses.dataclass
class Case:
    variant: Variant
    type: str
    model: pathlib.Path
    inputs: list

    @property
    def name(self):
        return f"{self.variant.name} {self.type}"


def make_inputs(seed):
    random = np.random.default_rng(seed)
    inputs = [[BOS, *random.integers(3, VOCABULARY, n - 1).tolist()] for n in LENGTHS]
    shared = [BOS, *random.integers(3, VOCABULARY, SHARED - 1).tolist()]
    return inputs + [shared + random.integers(3, VOCABULARY, n).tolist() for n in (3, 30)] + [shared]


def make_case(args, variant, weight_type, seed):
    model = args.work / f"{variant.name}-{weight_type}.gguf"
    heads, kv_heads = variant.heads
    run([args.make_model, "--arch", variant.architecture, "--type", weight_type, "--layers", variant.layers,
         "--width", variant.width, "--heads", heads, "--kv-heads", kv_heads, "--ffn", variant.ffn, "--vocab", VOCABULARY,
         "--context", 1024, "--seed", seed, "--pooling", variant.pooling, *variant.flags, model])
    return Case(variant, weight_type, model, make_inputs(seed))


def ask_ours(args, case, inputs, threads=2, pass_tokens=512):
    text = "".join(",".join(map(str, tokens)) + "\n" for tokens in inputs)
    result = subprocess.run([args.program, case.model, str(threads), str(pass_tokens)], input=text.encode(),
                            capture_output=True)
    if result.returncode != 0:
        raise Failure(f"{case.name}: {result.stderr.decode().strip()}")
    return np.frombuffer(result.stdout, np.float32).reshape(len(inputs), -1)


def ask_llama_cpp(args, cases):
    known = [case for case in cases if not case.variant.alone]
    jobs = [{"model": str(case.model), "inputs": case.inputs} for case in known]
    results = json.loads(run([args.node, HERE / "llama_cpp.mjs"], input=json.dumps(jobs)))
    vectors = {case.name: np.array(result) for case, result in zip(known, results, strict=True)}
    return [vectors.get(case.name) for case in cases]


def apart(a, b):
    """Returns 1 - cosine of each pair of vectors, or the errors of scores over the largest score."""
    if a.shape[1] == 1:
        return np.abs(a - b)[:, 0] / np.max(np.abs(b))
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a.astype(float), b.astype(float)))
    return 1 - (a * b).sum(axis=1)


def limits(case, is_score, noise):
    """Returns (of one input, of the mean over inputs) how far ours may be from float64."""
    least = 1e-2 if is_score else 1 - COSINE
    if case.type.startswith("q"):
        own = ALONE if case.variant.alone else 1.5 * noise.mean()
        return np.inf, max(least, own + (least if is_score else 0))
    exact = case.type == "f32" and case.variant.architecture not in CAUSAL and not is_score
    return EXACT if exact else least, least


def inexact(args, case, whole):
    """Returns a sentence for each call whose bits differ from those of `whole`."""
    found = []
    for threads, pass_tokens in ((1, 512), (2, 64), (2, 7)):
        if not np.array_equal(ask_ours(args, case, case.inputs, threads, pass_tokens), whole):
            found.append(f"bits differ on {threads} threads in passes of {pass_tokens} tokens")
    for i in (0, 3, len(case.inputs) - 2):
        if not np.array_equal(ask_ours(args, case, case.inputs[i:i + 1])[0], whole[i]):
            found.append(f"bits of input {i} differ alone")
    return found


def check_case(args, case, theirs):
    model = reference_encoders.load(case.model)
    truth = np.array([model.vector(tokens) for tokens in case.inputs])
    ours = ask_ours(args, case, case.inputs)
    theirs = truth if theirs is None else theirs[:, :truth.shape[1]]  # a reranker's first score
    to_truth, to_llama, noise = apart(ours, truth), apart(ours, theirs), apart(theirs, truth)
    print(f"{case.name:28s} ours-float64 {to_truth.max():9.2e}  ours-llama.cpp {to_llama.max():9.2e}"
          f"  llama.cpp-float64 {noise.max():9.2e}", flush=True)
    is_score = truth.shape[1] == 1
    of_one, of_mean = limits(case, is_score, noise)
    found = []
    if not (to_truth.max() <= of_one and to_truth.mean() <= of_mean):
        found.append(f"float64 is {to_truth.max():.3g} away, {to_truth.mean():.3g} on average; limits {of_one:.3g} and"
                     f" {of_mean:.3g}")
    least = 1e-2 if is_score else 1 - COSINE
    if not case.type.startswith("q") and not to_llama.max() <= least:
        found.append(f"llama.cpp is {to_llama.max():.3g} away, limit {least:.3g}")
    if case.type in ("f32", "q4_k_m"):
        found += inexact(args, case, ours)
    return [f"{case.name}: {problem}" for problem in found]


def check(args):
    args.work.mkdir(parents=True, exist_ok=True)
    cases = [make_case(args, variant, weight_type, 1 + VARIANTS.index(variant))
             for variant in VARIANTS if variant.name in args.variants for weight_type in args.types]
    failures = []
    for case, theirs in zip(cases, ask_llama_cpp(args, cases), strict=True):
        failures += check_case(args, case, theirs)
    if args.page and not failures:
        failures += models_page.check(args.page, {case.variant.architecture for case in cases}, args.write)
    if failures:
        raise Failure("\n  ".join([f"{len(failures)} checks failed", *failures]))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--make-model", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--node", default=shutil.which(HERE.parent / "node_modules/.bin/node") or shutil.which("node"))
    names = [variant.name for variant in VARIANTS]
    parser.add_argument("--variants", nargs="+", choices=names, default=names)
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    return parser.parse_args()


def main():
    args = parse_arguments()
    if args.node is None:
        print("SKIPPED: Node is not installed; ./dev setup installs it, with llama.cpp")
        sys.exit(SKIPPED)
    try:
        check(args)
    except Failure as failure:
        sys.exit(f"embeddings: {failure}")


if __name__ == "__main__":
    main()
