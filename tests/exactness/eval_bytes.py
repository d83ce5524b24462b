"""Checks that `kvcache eval` writes the same bytes of logits for any chunk size and thread count.

Covers each shape of the random models with each weight type and cache type; block types only if a
head is whole blocks. Evaluates 600 tokens, which span more than two of attention's splits of 256
and more than one prefill chunk of 512, in chunks of 1, 7, 64 and 512, with 1 and 2 threads. Each model
runs in chunks of 1 with one thread, and in two of the other seven ways, which the 57 models take in turns;
KVCACHE_SLOW_TESTS=1 runs all. The command line cannot test batches of several sequences and shared prefixes; exactness_test.cc does.
"""

import argparse
import hashlib
import itertools
import os
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from random_models import ALL_SHAPES, CASES, Failure, make_model, random_tokens, run

TOKENS = 600
CHUNKS = [1, 7, 64, 512]
THREADS = [1, 2]
KV_TYPES = ["f32", "f16", "bf16"]
BLOCK_TYPES = [("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "q4_0"), ("q4_0", "f16")]
BLOCK = 32  # values of a head that share a scale


def evaluate(args, model, tokens, kv_types, chunk, threads):
    """Returns the logits file's bytes. Checks that the logits are finite and not all equal."""
    out = args.work / "logits.npy"
    out.unlink(missing_ok=True)
    run([args.kvcache, "eval", model, "--tokens-file", tokens, "--logits", out, "--k-type",
         kv_types[0], "--v-type", kv_types[1], "--prefill-chunk", chunk, "--threads", threads,
         "--json"])
    logits = np.load(out, mmap_mode="r")
    if len(logits) != TOKENS or not np.isfinite(logits).all() or np.ptp(logits[-1]) == 0:
        raise Failure(f"{out}: logits of shape {logits.shape} are not finite, all equal or not "
                      f"for {TOKENS} tokens")
    return out.read_bytes()


def first_difference(expected, got):
    where = next((i for i, (a, b) in enumerate(zip(expected, got)) if a != b), None)
    if where is None:
        return f"{len(got)} bytes instead of {len(expected)}"
    return f"first at byte {where}"


def other_ways(turn):
    """Returns the (chunk, threads) that are compared with the first ones: all, or two of the seven that come by turns."""
    ways = list(itertools.product(CHUNKS, THREADS))[1:]
    if os.environ.get("KVCACHE_SLOW_TESTS") == "1":
        return ways
    return [ways[(2 * turn + i) % len(ways)] for i in range(2)]


def check_model(args, shape, weight_type, kv_types, turn):
    """Prints a line about the model and returns the differences."""
    model = args.work / f"{shape.name}-{weight_type}.gguf"
    make_model(args.make_model, shape, weight_type, args.seed, model)
    tokens = args.work / f"{shape.name}.tokens"
    tokens.write_text(",".join(map(str, random_tokens(shape, TOKENS, args.seed))) + "\n")
    failures = []
    cache = "/".join(dict.fromkeys(kv_types))
    expected = evaluate(args, model, tokens, kv_types, CHUNKS[0], THREADS[0])
    for chunk, threads in other_ways(turn):
        got = evaluate(args, model, tokens, kv_types, chunk, threads)
        if got != expected:
            failures.append(f"{shape.name}, {weight_type} weights, {cache} cache: chunk {chunk}"
                            f" and {threads} threads differ from chunk 1 and 1 thread,"
                            f" {first_difference(expected, got)}")
    digest = hashlib.sha256(expected).hexdigest()[:16]
    print(f"{shape.name:16s} {weight_type:6s} weights {cache:9s} cache: {digest}", flush=True)
    return failures


def check(args):
    args.work.mkdir(parents=True, exist_ok=True)
    failures = []
    models_of_type = {}
    for turn, (shape, weight_type) in enumerate(CASES):
        # The shapes together cover every pair of weight and cache type; a single shape does not.
        models_of_type[weight_type] = models_of_type.get(weight_type, -1) + 1
        kv_type = KV_TYPES[models_of_type[weight_type] % len(KV_TYPES)]
        failures += check_model(args, shape, weight_type, (kv_type, kv_type), turn)
    whole = [shape for shape in ALL_SHAPES if shape.head_dim % BLOCK == 0]
    for i, shape in enumerate(whole):
        failures += check_model(args, shape, "f32" if i % 2 == 0 else "q8_0",
                                BLOCK_TYPES[i % len(BLOCK_TYPES)], i)
    if failures:
        raise Failure("\n  ".join([f"{len(failures)} files differ", *failures]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make-model", type=pathlib.Path, required=True)
    parser.add_argument("--kvcache", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the files")
    parser.add_argument("--seed", type=int, default=1)
    try:
        check(parser.parse_args())
    except Failure as failure:
        sys.exit(f"exactness: {failure}")


if __name__ == "__main__":
    main()
