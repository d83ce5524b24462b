"""Checks that the figures of docs/cache-types.md hold for this build.

Evaluates a few of its texts again with a few pairs of types. The perplexity must equal the recorded
one, rounded as it is printed.
"""

import argparse
import json
import math
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/cache_quality"))

import measure
import subjects

PAIRS = [("f32", "f32"), ("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "q4_0"), ("q4_0", "q4_0")]
TEXTS = 2
# These targets give the same figures. Targets without fused multiply-add and other processors round
# differently, so a relative tolerance applies to them.
SAME_FIGURES, TOLERANCE = {"AMX", "AVX3_DL", "AVX3", "AVX_VNNI", "AVX2", "NEON_I8MM", "NEON_DOTPROD", "NEON"}, 2e-3


def figures_differ(recorded, measured, tokens, exact):
    was, now = (math.exp(nll / tokens) for nll in (recorded, measured))
    if exact:
        return f"{was:.4f}" != f"{now:.4f}"
    return abs(now / was - 1) > TOLERANCE


def check(kvcache):
    recorded = json.loads((ROOT / "docs/cache-types.json").read_text())
    target = json.loads(measure.run(kvcache, "inspect", "--machine", "--json"))["target"]
    exact = {target, recorded["target"]} <= SAME_FIGURES
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        texts = subjects.story_texts(pathlib.Path(folder))[:TEXTS]
        for pair in PAIRS:
            reports = [measure.evaluate(kvcache, subjects.STORY, text, pair)[0] for text in texts]
            measured = sum(report["nll"] for report in reports)
            tokens = sum(report["tokens"] - 1 for report in reports)
            was = sum(recorded["with_hadamard"]["story"]["/".join(pair)]["nll"][:TEXTS])
            print(f"{'/'.join(pair)}: nll {measured:.6f}, recorded {was:.6f}")
            if figures_differ(was, measured, tokens, exact):
                failures.append("/".join(pair))
    if failures:
        sys.exit(f"docs/cache-types.json differs from this build for {', '.join(failures)}; "
                 "tools/cache_quality/README.md describes how to measure it again")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvcache", type=pathlib.Path, required=True)
    check(parser.parse_args().kvcache)


if __name__ == "__main__":
    main()
