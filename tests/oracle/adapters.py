"""Compares logits with LoRA adapters with llama.cpp's and with a float64 pass, on random-weight models.

For each variant and weight type, all engines get a model and two adapters with scales of their own:

  float64    tests/oracle/reference.py, with scale · alpha / r · B A added to each weight
  llama.cpp  tests/oracle/llama_cpp.mjs, with the adapters' files
  ours       kvcache eval --adapter

The bounds are those of compare.py: f32 weights are within 1e-8 of both (KL, in nats, mean over positions); types that
quantise activations are at most 1.1 times as far from float64 as llama.cpp is. For variants that llama.cpp's adapters do
not cover, float64 alone is compared. The adapters move the logits by more than 1,000 times these bounds.
"""

import argparse
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import adapter_file
from compare import find_node
import distance
from gguf_file import GgufFile
from random_models import SHAPES, VARIANTS, WIDE_SHAPES, Failure, make_model, random_tokens, run
import reference

SKIPPED = 77
HERE = pathlib.Path(__file__).resolve().parent
TOKENS = 160
MIN_EFFECT = 1e-3  # KL between the logits with and without adapters
ADAPTERS = [  # scale, alpha, rank, type of the values
    (0.75, 16.0, 8, "f32"),
    (-0.5, 0.0, 3, "f16"),  # without alpha the scale alone is the factor
]
# Variant: the types of weights, and whether llama.cpp is compared.
CASES = {
    "llama": (("f32", "q8_0", "q4_k_m"), True),
    "llama-experts": (("f32",), True),
    "qwen2": (("f32", "q5_0"), True),
    "qwen3": (("f32", "q4_k"), True),
    "qwen3moe": (("f32",), True),
    "gemma3-of-3": (("f32",), True),
    "phi3": (("f32",), True),
    "granite": (("f32",), True),
    "lfm2": (("f32",), False),
    "deepseek2-v2": (("f32",), False),
    "falcon-h1": (("f32",), False),
    "qwen3next": (("f32",), False),
}


class MergedReference:
    """Adds adapters to the weights that the float64 pass reads."""

    def __init__(self, pairs_and_factors):
        self._adapters = pairs_and_factors

    def __enter__(self):
        self._read = GgufFile.tensor
        read, adapters = self._read, self._adapters

        def tensor(file, name):
            weight = read(file, name)
            for pairs, factor in adapters:
                weight = adapter_file.merged(name, weight, pairs, factor)
            return weight

        GgufFile.tensor = tensor

    def __exit__(self, *_):
        GgufFile.tensor = self._read


def adaptable(file):
    """Returns name → shape of the matrices that both engines' adapters change."""
    shapes = {}
    for name, info in file.tensors.items():
        fits = len(info.dims) >= 2 and name.endswith(".weight")
        # llama.cpp has no adapters for these, and a tied output would have the embedding's.
        parts = ("conv", "norm", "attn_k_b", "attn_v_b", "per_layer", "token_embd")
        if fits and not any(part in name for part in parts):
            shapes[name] = info.dims[::-1]
    return shapes


def make_adapters(stem, file):
    """Writes both adapters. Returns their files, scales, pairs and factors."""
    made = []
    for index, (scale, alpha, rank, value_type) in enumerate(ADAPTERS):
        pairs = adapter_file.random_pairs(adaptable(file), rank, 10 + index, 0.08, value_type)
        path = pathlib.Path(f"{stem}.adapter{index}.gguf")
        adapter_file.write_gguf(path, file.metadata["general.architecture"], pairs, alpha, value_type)
        made.append((path, scale, pairs, scale * (alpha / rank if alpha else 1.0)))
    return made


def ask_ours(args, model, stem, tokens, adapters, flags):
    out = pathlib.Path(f"{stem}.npy")
    listed = pathlib.Path(f"{stem}.tokens")
    listed.write_text(",".join(map(str, tokens)) + "\n")
    given = [word for path, scale, *_ in adapters for word in ("--adapter", f"{path}:{scale}")]
    run([args.kvcache, "eval", model, "--tokens-file", listed, "--logits", out, "--kv-type", "f32",
         *flags, *given])
    return np.load(out)


def check(case, name, value, limit):
    print(f"{case:32} {name:24} {value:.3g} of {limit:.3g}")
    if not value <= limit:
        raise Failure(f"{case}: {name} is {value:.3g}, limit {limit:.3g}")


def compare(args, variant, weight_type, with_llama_cpp):
    wide = weight_type.startswith("q4_k")
    shape = variant.fit((WIDE_SHAPES if wide else SHAPES)[0])
    case = f"{variant.name} {weight_type}"
    stem = args.work / f"{variant.name}-{weight_type}"
    model = stem.with_suffix(".gguf")
    make_model(args.make_model, shape, weight_type, 5, model, variant)
    adapters = make_adapters(stem, GgufFile(model))
    tokens = random_tokens(shape, TOKENS, 5)
    with MergedReference([(pairs, factor) for _, _, pairs, factor in adapters]):
        truth = distance.log_softmax(reference.load(model).logits(tokens))
    ours = distance.log_softmax(ask_ours(args, model, stem, tokens, adapters, variant.eval_flags))
    plain = distance.log_softmax(ask_ours(args, model, stem, tokens, [], variant.eval_flags))
    effect = distance.mean_kl(ours, plain)
    if effect < MIN_EFFECT:
        raise Failure(f"{case}: the adapters move logits by {effect:.3g} only")
    distance_ours = distance.mean_kl(ours, truth)
    if not with_llama_cpp:
        return check(case, "KL(ours, float64)", distance_ours, 1e-8)
    job = {"model": str(model), "tokens": tokens, "greedy": 0, "logits": f"{stem}.llama",
           "adapters": [{"filePath": str(path), "scale": scale} for path, scale, *_ in adapters]}
    run([args.node, HERE / "llama_cpp.mjs"], input=json.dumps([job]))
    oracle = distance.log_softmax(np.fromfile(f"{stem}.llama", np.float32).reshape(truth.shape))
    distance_llama = distance.mean_kl(oracle, truth)
    if weight_type != "f32":
        return check(case, "KL(ours, float64)", distance_ours, 1.1 * distance_llama)
    limit = max(1e-8, 1.1 * distance_llama) if variant.rough_gelu else 1e-8
    check(case, "KL(ours, float64)", distance_ours, 1e-8)
    return check(case, "KL(ours, llama.cpp)", distance.mean_kl(ours, oracle), limit)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("--make-model", "--kvcache", "--work"):
        parser.add_argument(flag, required=True, type=pathlib.Path)
    parser.add_argument("--node", default=find_node())
    parser.add_argument("--variants", nargs="*", default=sorted(CASES))
    args = parser.parse_args()
    if args.node is None:
        print("SKIPPED: Node is not installed; ./dev setup installs it, with llama.cpp")
        sys.exit(SKIPPED)
    args.work.mkdir(parents=True, exist_ok=True)
    known = {variant.name: variant for variant in VARIANTS}
    for name in args.variants:
        types, with_llama_cpp = CASES[name]
        for weight_type in types:
            compare(args, known[name], weight_type, with_llama_cpp)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(str(failure))
