"""Compares models that `kvcache create --quantize` has made with llama.cpp and with a float64 pass.

A model of random f32 weights is converted to each type and mixture that --quantize knows (its error message
lists them). llama.cpp loads each file. Logits and greedy tokens are compared as in compare.py, whose bounds
apply: those of compare.py's rows of the same type. Each type has one of the models; with KVCACHE_SLOW_TESTS all.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

import compare
from random_models import WIDE_SHAPES, VARIANTS, Failure, make_model, random_tokens, run

# Mixtures give some matrices more bits. In the last shape rows of the feed-forward part fall back.
SHAPES = (WIDE_SHAPES[0], WIDE_SHAPES[3])
MODELS = ("llama", "llama-experts")


def names_of_types(args):
    """Returns the names that --quantize knows, as its error message has them."""
    modelfile = args.work / "Modelfile"
    modelfile.write_text("FROM /nonexistent\n")
    done = subprocess.run([args.kvcache, "create", "x", "-f", modelfile, "--quantize", "none"],
                          capture_output=True, text=True, env=environment(args), check=False)
    found = re.search(r"is no type of weights; there are ([^;]*)", done.stderr)
    if found is None:
        raise Failure(f"create does not list its types: {done.stderr}")
    return re.findall(r"[a-z0-9_]+", found[1])


def environment(args):
    return {**os.environ, "KVCACHE_MODELS": str(args.work / "store")}


def quantize(args, plain, name):
    """Returns the path of the model's weights in the store."""
    modelfile = args.work / "Modelfile"
    modelfile.write_text(f"FROM {plain}\n")
    run([args.kvcache, "create", name, "-f", modelfile, "--quantize", name], env=environment(args))
    shown = json.loads(run([args.kvcache, "show", name, "--json"], env=environment(args)))
    [layer] = [each for each in shown["layers"] if each["type"].endswith(".model")]
    return args.work / "store" / "blobs" / layer["digest"].replace(":", "-")


def cases_of(args, variant, shape, seed, names):
    shape = variant.fit(shape)
    plain = args.work / f"{variant.name}-{shape.name}.gguf"
    make_model(args.make_model, shape, "f32", seed, plain, variant)
    for name in names:
        stem = args.work / f"{variant.name}-{shape.name}-{name}"
        model = stem.with_suffix(".gguf")
        model.unlink(missing_ok=True)
        os.link(quantize(args, plain, name), model)
        yield compare.Case(variant, shape, name, model,
                           random_tokens(shape, compare.PROMPT, seed), stem, seed)


def check(args):
    args.work.mkdir(parents=True, exist_ok=True)
    variants = [variant for variant in VARIANTS if variant.name in MODELS]
    models = [(i, variant, shape) for i, variant in enumerate(variants) for shape in SHAPES[i:]]
    names = names_of_types(args)
    step = 1 if "KVCACHE_SLOW_TESTS" in os.environ else len(models)
    cases = [case for first, (i, variant, shape) in enumerate(models)
             for case in cases_of(args, variant, shape, 1 + i, names[first % step::step])]
    compare.ask_llama_cpp(args, cases)
    print(compare.HEADING.format(prompt=compare.PROMPT, greedy=compare.GREEDY, seed=1))
    failures = []
    for case in cases:
        row = compare.with_medians([compare.measure(args, case)])
        compare.print_row(row)
        failures += [f"{case.name}: {problem}" for problem in compare.problems(row)]
    if failures:
        raise Failure("\n  ".join([f"{len(failures)} checks failed", *failures]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make-model", type=pathlib.Path, required=True)
    parser.add_argument("--kvcache", type=pathlib.Path, required=True)
    parser.add_argument("--node", default=compare.find_node())
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the files")
    args = parser.parse_args()
    if args.node is None:
        print("SKIPPED: Node is not installed; ./dev setup installs it, with llama.cpp")
        sys.exit(compare.SKIPPED)
    try:
        check(args)
    except Failure as failure:
        sys.exit(f"quantized: {failure}")


if __name__ == "__main__":
    main()
