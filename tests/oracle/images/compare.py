"""Compares text models with cross-attention over an image with a float64 pass.

An image of random states belongs to a token in the middle of a text. Its states exceed one of
attention's splits of 256. The bounds are those of ../compare.py for variants that llama.cpp does not
know.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support")]

import distance  # noqa: E402  (the path comes first)
from random_models import ALL_SHAPES, Variant, make_model  # noqa: E402
from reference_mllama import Reference  # noqa: E402

TOKENS, AT, STATES = 330, 70, 301
CASES = [("grouped-64", "f32"), ("five-of-one-32", "f32"), ("grouped-64", "bf16"),
         ("nine-of-three-64", "q8_0"), ("wide-grouped-64", "q4_k_m")]
LIMITS = {"f32": 1e-8, "bf16": 1e-6}


def ours(args, model, tokens, states, vocab):
    data = np.asarray(tokens, np.int32).tobytes() + states.astype(np.float32).tobytes()
    result = subprocess.run([args.program, model, str(TOKENS), str(AT), str(STATES)], input=data,
                            capture_output=True)
    if result.returncode != 0:
        sys.exit(f"images: {result.stderr.decode()}")
    return np.frombuffer(result.stdout, np.float32).reshape(TOKENS, vocab)


def check(args, shape, weight_type, seed):
    model = args.work / f"{shape.name}-{weight_type}.gguf"
    make_model(args.make_model, shape, weight_type, seed, model, Variant("mllama", "mllama"))
    random = np.random.default_rng(seed)
    tokens = random.integers(0, shape.vocab, TOKENS)
    tokens[AT] = shape.vocab + 3  # has an embedding but no logit
    states = random.standard_normal((STATES, shape.width)).astype(np.float32)
    truth = Reference(model).logits(tokens, states.astype(np.float64), AT)
    got = ours(args, model, tokens, states, shape.vocab)
    kl = distance.mean_kl(distance.log_softmax(got), distance.log_softmax(truth))
    limit = LIMITS.get(weight_type, 1e-2)
    blind = Reference(model).logits(tokens, states.astype(np.float64), TOKENS)
    seen = distance.mean_kl(distance.log_softmax(blind[AT:]), distance.log_softmax(truth[AT:]))
    print(f"{shape.name:18s} {weight_type:7s} KL(ours, float64) {kl:.2e}, limit {limit:.0e};"
          f" without the image {seen:.2f}")
    row = {"variant": "mllama", "architecture": "mllama", "shape": shape.name, "type": weight_type,
           "positions": TOKENS, "alone": "llama.cpp does not know it", "experts": False,
           "kl_ours_truth": kl}
    return row, np.isfinite(got).all() and kl < limit and seen > 0.1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--make-model", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--json", type=pathlib.Path, help="write the figures here")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    shapes = {shape.name: shape for shape in ALL_SHAPES}
    rows, good = zip(*[check(args, shapes[name], weight_type, 7 + i)
            for i, (name, weight_type) in enumerate(CASES)])
    if args.json:
        args.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    sys.exit(0 if all(good) else "images: too far from float64")


if __name__ == "__main__":
    main()
