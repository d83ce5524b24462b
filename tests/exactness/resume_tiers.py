"""Checks that `kvcache eval --resume-at` gives the bytes of plain logits through every tier.

Each architecture has a model in Q8_0; one of each kind of layers (full, window, chunk, recurrent) also has
the other types of cache. The place to resume at is neither the end of a pass nor that of a window. A Redis
server is started if there is one.

  resume_tiers.py --make-model TOOL --kvcache PROGRAM --work FOLDER
"""

import argparse
import dataclasses
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from random_models import LLAMA, VARIANTS, WIDE_SHAPES, Failure, make_model, random_tokens, run

TOKENS = 300
AT = 177
SEED = 1
SHAPE = dataclasses.replace(WIDE_SHAPES[0], layers=2)
KINDS = ("llama", "gemma3-of-3", "llama4-chunks", "qwen3next")
CACHES = (("f32", "f32"), ("bf16", "bf16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "f16"))


def settings():
    """Returns [(variant, types of keys and values)]."""
    variants = {each.name: each for each in (LLAMA, *VARIANTS) if not each.apart}
    return ([(variant, ("f16", "f16")) for variant in variants.values()]
            + [(variants[name], cache) for name in KINDS for cache in CACHES])


class Redis:
    """A server on loopback while the context lasts; `url` is empty without the program."""

    def __enter__(self):
        self.process, self.url = None, ""
        program = shutil.which("redis-server")
        if not program:
            return self
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
            stdout=subprocess.DEVNULL)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                self.url = f"redis://127.0.0.1:{port}"
                return self
            except OSError:
                time.sleep(0.05)
        raise Failure("the Redis server does not answer")

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait()


def evaluate(args, variant, model, tokens, cache, tier, store):
    """Returns (the bytes of the logits, the reuse object)."""
    out = args.work / "logits.npy"
    flags = list(variant.eval_flags)
    if variant.encoded:
        encoded = args.work / "encoded.tokens"
        encoded.write_text(",".join(map(str, tokens[:variant.encoded])) + "\n")
        flags += ["--encode-tokens-file", encoded]
        tokens = tokens[variant.encoded:]
    if tier:
        at = min(AT, len(tokens) - 1)
        flags += ["--resume-at", str(at), "--via", tier, "--store", store]
    answer = run([args.kvcache, "eval", model, "--tokens", ",".join(map(str, tokens)), "--logits", out,
                  "--k-type", cache[0], "--v-type", cache[1], "--json", *flags])
    return out.read_bytes(), json.loads(answer)["reuse"]


def check_setting(args, setting, tiers, store):
    """Returns what is wrong."""
    variant, cache = setting
    shape = variant.fit(SHAPE)
    model = args.work / f"{variant.name}.gguf"
    if not model.exists():
        make_model(args.make_model, shape, "q8_0", SEED, model, variant)
    tokens = random_tokens(shape, TOKENS, SEED)
    expected, _ = evaluate(args, variant, model, tokens, cache, None, store)
    problems = []
    for tier in tiers:
        name = f"{variant.name}, {'/'.join(dict.fromkeys(cache))} cache, {tier}"
        got, reuse = evaluate(args, variant, model, tokens, cache, tier, store)
        if got != expected:
            problems.append(f"{name}: other logits")
        if reuse["tiers"][tier] < min(AT, TOKENS - variant.encoded - 1):
            problems.append(f"{name}: only {reuse['tiers'][tier]} tokens came from the tier")
    return problems


def check(args):
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    problems = []
    with Redis() as redis:
        tiers = ["live", "memory", "disk", *(["remote"] if redis.url else [])]
        store = ",".join(filter(None, [str(args.work / "store"), redis.url]))
        for setting in settings():
            problems += check_setting(args, setting, tiers, store)
    if problems:
        raise Failure("\n  ".join([f"{len(problems)} problems", *problems]))
    print(f"{len(settings())} settings through {', '.join(tiers)}: the bytes of plain logits")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make-model", type=pathlib.Path, required=True)
    parser.add_argument("--kvcache", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the files")
    try:
        check(parser.parse_args())
    except Failure as failure:
        sys.exit(f"resume_tiers: {failure}")


if __name__ == "__main__":
    main()
