"""Compares the logits of small random models with committed hashes, for each instruction set.

Each architecture has a model in Q4_K_M; llama also has every other type of weights, and every type
of cache. tools/make_model writes them from a seed. A hash covers the logits of 300 tokens,
which span two of attention's splits of 256; the portable instruction set, which is slow, evaluates 150 of
decoders whose kernels others have too (WHOLE), more than their windows and chunks have. AMX, AVX3_DL, AVX3, AVX_VNNI
and AVX2 have one hash, and so have Arm's NEON_I8MM, NEON_DOTPROD and NEON, because their kernels give the same bits; the
portable instruction set has its own, and no fused multiply-add.

The hash of a model's file is committed too, so that a change of the tool is not taken for one of
the kernels. No function of the C library is among what logits depend on, so the hashes hold on every machine.

  logit_hashes.py --make-model TOOL --kvcache PROGRAM --work FOLDER            compares
  logit_hashes.py --make-model TOOL --kvcache PROGRAM --work FOLDER --update   writes the file

AMX is compared on a machine that lacks it too if --with-tiles names the program that emulates its tiles, for llama and
models with experts. AMX differs from AVX3_DL only in products of bytes, which all architectures share.

For emulated processors, which are slow, there are two more flags: --only compares some settings, and --best compares
architectures other than llama with the best instruction set only. Arm's instruction sets differ only in products of
bytes, which all architectures share.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from random_models import LLAMA, VARIANTS, WIDE_SHAPES, Failure, make_model, random_tokens, run

HASHES = pathlib.Path(__file__).with_name("logit_hashes.json")
TOKENS = 300
PORTABLE_TOKENS = 150
# Those whose attention is a kernel of its own span two splits on the portable instruction set too.
WHOLE = ("llama", "deepseek2-v2", "gpt-oss", "qwen3next")
SEED = 1
# Instruction sets with fused multiply-add, whose hashes are equal, and the others.
FUSED = ("AMX", "AVX3_DL", "AVX3", "AVX_VNNI", "AVX2", "NEON_I8MM", "NEON_DOTPROD", "NEON")
PORTABLE = ("EMU128",)
SHAPE = dataclasses.replace(WIDE_SHAPES[0], layers=2)
ALL_TYPES = ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q5_k_m", "q6_k", "mxfp4")
CACHES = (("f32", "f32"), ("bf16", "bf16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "f16"),
          ("f16", "q4_0"))


def settings():
    """Returns [(variant, type of weights, types of keys and values)]."""
    latents = next(each for each in VARIANTS if each.name == "deepseek2-v2")
    families = [each for each in VARIANTS if not each.apart and each.name != LLAMA.name]
    return ([(LLAMA, weights, ("f16", "f16")) for weights in ("f32", "q4_k_m", *ALL_TYPES)]
            + [(LLAMA, "q4_k_m", cache) for cache in CACHES]
            + [(variant, "q4_k_m", ("f16", "f16")) for variant in families]
            + [(latents, "q4_k_m", ("q8_0", "q8_0"))])


def name_of(setting):
    variant, weights, cache = setting
    return ", ".join((variant.name, weights, *cache))


def targets(kvcache):
    """Returns the instruction sets that the program offers on this machine."""
    return json.loads(run([kvcache, "inspect", "--machine", "--json"]))["targets"]


def program_of(args, offered, target):
    """Returns the program that evaluates with an instruction set."""
    return args.kvcache if target in offered else args.with_tiles


def tried_targets(args, offered, variant):
    """Returns the instruction sets to compare: those of the machine, and AMX if its tiles can be emulated."""
    if args.best and variant is not LLAMA:
        return offered[:1]
    emulates = args.with_tiles is not None and "AVX3_DL" in offered and "AMX" not in offered
    return [*offered, "AMX"] if emulates and (variant is LLAMA or variant.experts) else offered


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def count_of(variant, kind):
    """Returns how many tokens a kind of instruction sets evaluates."""
    is_short = kind == "portable" and variant.name not in WHOLE and not variant.encoded
    return PORTABLE_TOKENS if is_short else TOKENS


def evaluate(args, program, variant, model, tokens, cache, target):
    """Returns the hash of the logits."""
    out = args.work / "logits.npy"
    flags = list(variant.eval_flags)
    if variant.encoded:
        encoded = args.work / "encoded.tokens"
        encoded.write_text(",".join(map(str, tokens[:variant.encoded])) + "\n")
        flags += ["--encode-tokens-file", encoded]
        tokens = tokens[variant.encoded:]
    run([program, "eval", model, "--tokens", ",".join(map(str, tokens)), "--logits", out,
         "--k-type", cache[0], "--v-type", cache[1], *flags],
        env={**os.environ, "KVCACHE_CPU_TARGET": target})
    return digest(out)


def check_setting(args, offered, tried, setting, expected):
    """Returns (the setting's hashes, what differs from the expected ones)."""
    variant, weights, cache = setting
    shape = variant.fit(SHAPE)
    model = args.work / f"{variant.name}-{weights}.gguf"
    if not model.exists():
        make_model(args.make_model, shape, weights, SEED, model, variant)
    name = f"{variant.name}, {weights} weights, {'/'.join(dict.fromkeys(cache))} cache"
    found, problems = {"model": digest(model)}, []
    if expected and expected["model"] != found["model"]:
        return found, [f"{name}: the tool writes another model; run with --update"]
    for kind, group in (("fused", FUSED), ("portable", PORTABLE)):
        for target in (each for each in tried if each in group):
            tokens = random_tokens(shape, TOKENS, SEED)[:count_of(variant, kind)]
            program = program_of(args, offered, target)
            value = evaluate(args, program, variant, model, tokens, cache, target)
            wanted = (expected or found).get(kind, value)
            found[kind] = value
            if value != wanted:
                problems.append(f"{name}, {target}: the hash is {value} instead of {wanted}")
    return found, problems


def check(args):
    args.work.mkdir(parents=True, exist_ok=True)
    for old in args.work.glob("*.gguf"):
        old.unlink()
    committed = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    offered = targets(args.kvcache)
    found, problems = {}, []
    for setting in (each for each in settings() if args.only in name_of(each)):
        name = name_of(setting)
        expected = None if args.update else committed["hashes"].get(name, {"model": ""})
        tried = tried_targets(args, offered, setting[0])
        found[name], wrong = check_setting(args, offered, tried, setting, expected)
        problems += wrong
    if problems:
        raise Failure("\n  ".join([f"{len(problems)} hashes differ", *problems]))
    print(f"{len(found)} settings with {', '.join(tried_targets(args, offered, LLAMA))}")
    if args.update:
        HASHES.write_text(json.dumps({"hashes": found}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make-model", type=pathlib.Path, required=True)
    parser.add_argument("--kvcache", type=pathlib.Path, required=True)
    parser.add_argument("--with-tiles", type=pathlib.Path, help="the program that emulates the tiles of AMX")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the files")
    parser.add_argument("--update", action="store_true", help="write the hashes of this machine")
    parser.add_argument("--only", default="", help="compare the settings whose name has this text")
    parser.add_argument("--best", action="store_true",
                        help="compare other architectures than llama with the best instruction set only")
    args = parser.parse_args()
    if args.update and (args.only or args.best):
        parser.error("--update writes all hashes; it takes neither --only nor --best")
    try:
        check(args)
    except Failure as failure:
        sys.exit(f"logit_hashes: {failure}")


if __name__ == "__main__":
    main()
