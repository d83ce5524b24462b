"""Compares the logits of gemma4's draft head with a float64 pass and with llama.cpp's.

All draft behind a text at several lengths: within the window, at its edge, far behind it, and behind one of
attention's splits of 256. The bounds are those of ../compare.py: f32 and bf16 must be close to float64. As
elsewhere with GELU, f32 must be at most 1.1 times as far from llama.cpp as float64 is, and llama.cpp within 1e-3
of float64. Types that quantise activations: KL(ours, float64) < 1e-2.

Without llama.cpp's libraries, only float64 is compared.
"""

import argparse
import pathlib
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "support")]

import distance  # noqa: E402  (the path comes first)
import reference_gemma4  # noqa: E402
import reference_gemma4_assistant  # noqa: E402
from random_models import Shape, Variant, make_model  # noqa: E402

WINDOW, DRAFTS = 100, 5
LENGTHS = [1, 40, WINDOW - 1, WINDOW, WINDOW + 1, 300]
# Types, and layers of target and head. llama.cpp needs a layer without a window.
CASES = [("f32", 4, 4), ("f32", 2, 2), ("bf16", 4, 1), ("q8_0", 4, 4)]
LIMITS = {"f32": 1e-8, "bf16": 1e-6}


def made(args, architecture, weight_type, layers, width, seed):
    shape = Shape(architecture, layers, width, 4, 2, 64, 2 * width, 1001, tied=True)
    variant = Variant(architecture, architecture, ("--window", WINDOW, "--rope-base", 1000000))
    path = args.work / f"{architecture}-{weight_type}-{layers}.gguf"
    make_model(args.make_model, shape, weight_type, seed, path, variant)
    return path


def llama_logits(args, target, head, tokens):
    """Returns llama.cpp's logits, or None without its libraries."""
    if not args.libraries.is_dir():
        print("llama.cpp is not installed: run npm ci in tests/oracle")
        return None
    texts, out = args.work / "tokens.npy", args.work / "logits.npy"
    np.save(texts, tokens)
    result = subprocess.run([sys.executable, HERE / "llama_cpp.py", args.libraries, target, head,
                             ",".join(map(str, LENGTHS)), texts, out], capture_output=True)
    if result.returncode != 0:
        sys.exit(f"assistant: {result.stderr.decode()[-2000:]}")
    return np.load(out)


def is_near(log_ours, log_llama, log_truth):
    """Returns whether ours is as near to llama.cpp as float64 is."""
    ours, truth = (distance.mean_kl(x, log_llama) for x in (log_ours, log_truth))
    print(f"      KL to llama.cpp: ours {ours:.3e}, float64 {truth:.3e}")
    return ours <= 1.1 * truth and distance.mean_kl(log_llama, log_truth) < 1e-3


def check(args, weight_type, target_layers, head_layers, seed):
    target = made(args, "gemma4", weight_type, target_layers, 192, seed)
    head = made(args, "gemma4-assistant", weight_type, head_layers, 96, seed + 1)
    tokens = np.random.default_rng(seed).integers(0, 1001, LENGTHS[-1] + DRAFTS)
    result = subprocess.run([args.program, target, head, *map(str, LENGTHS)],
                            input=tokens.astype(np.int32).tobytes(), capture_output=True)
    if result.returncode != 0:
        sys.exit(f"assistant: {result.stderr.decode()}")
    got = np.frombuffer(result.stdout, np.float32).reshape(len(LENGTHS) * DRAFTS, -1)
    model = reference_gemma4_assistant.Reference(head, reference_gemma4.Reference(target))
    truth = np.concatenate([model.drafts(tokens[:n], tokens[n:n + DRAFTS]) for n in LENGTHS])
    log_truth = distance.log_softmax(truth)
    kl = distance.mean_kl(distance.log_softmax(got), log_truth)
    limit = LIMITS.get(weight_type, 1e-2)
    entropy = distance.entropy(log_truth)
    print(f"{weight_type:5s} {target_layers} and {head_layers} layers: "
          f"KL(ours, float64) {kl:.2e}, limit {limit:.0e}; entropy {entropy:.1f}")
    good = np.isfinite(got).all() and kl < limit and entropy > 1.0
    llama = llama_logits(args, target, head, tokens) if weight_type == "f32" else None
    if llama is None:
        return good
    return good and is_near(distance.log_softmax(got), distance.log_softmax(llama), log_truth)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--make-model", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--libraries", type=pathlib.Path, help="the folder of llama.cpp's libraries",
                        default=HERE.parent / "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    good = [check(args, *case, 7 + 2 * i) for i, case in enumerate(CASES)]
    sys.exit(0 if all(good) else "assistant: too far from float64")


if __name__ == "__main__":
    main()
