#!/usr/bin/python3
"""Writes the tables of docs/cache-types.md from docs/cache-types.json, between their marks.

  tools/cache_quality/page.py            writes the tables
  tools/cache_quality/page.py --check    fails if the page has other tables
"""

import argparse
import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE, RESULTS = ROOT / "docs/cache-types.md", ROOT / "docs/cache-types.json"
TYPES = ["f32", "f16", "bf16", "q8_0", "q4_0"]
MARK = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head, rows):
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def square(results, show):
    """Returns a table with the types of K as rows and those of V as columns."""
    rows = [[f"**{k}**"] + [show(results[f"{k}/{v}"]) for v in TYPES] for k in TYPES]
    return table(["K ↓ V →", *TYPES], rows)


def perplexity(subject, figures):
    texts = len(figures["nll"])
    return math.exp(sum(figures["nll"]) / (subject["tokens"] - texts))


def distance(figures):
    return "0" if figures["kl"] == 0 else f"{figures['kl']:.1e}"


def rotation(results):
    rows = []
    for name, subject in results["without_hadamard"].items():
        for k in ("q8_0", "q4_0"):
            without, with_it = subject[f"{k}/f32"], results["with_hadamard"][name][f"{k}/f32"]
            answers = [f"{f['answers']}" if "answers" in f else "-" for f in (without, with_it)]
            rows.append([name, k, distance(without), distance(with_it), *answers])
    return table(["model", "K", "KL without transform", "KL with transform",
                  "answers without transform", "answers with transform"], rows)


def tables(results):
    measured = results["with_hadamard"]
    story = measured["story"]
    return {
        "bytes": square(story, lambda f: f"{f['bytes_per_token']:,}"),
        "perplexity": square(story, lambda f: f"{perplexity(story, f):.4f}"),
        "answers": square(story, lambda f: str(f["answers"])),
        "distance": square(measured["widened"], distance),
        "agreement": square(measured["widened"], lambda f: f"{100 * f['agree']:.2f}%"),
        "random_64": square(measured["random-64"], distance),
        "random_128": square(measured["random-128"], distance),
        "rotation": rotation(results),
    }


def render(page, results):
    made = tables(results)
    marks = [name for _, name, _ in MARK.findall(page)]
    if sorted(marks) != sorted(made):
        raise ValueError(f"the page has marks for {marks}; must have one for each of {list(made)}")
    return MARK.sub(lambda m: m.group(1) + made[m.group(2)] + m.group(3), page)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true",
                        help="compare the tables instead of writing them")
    args = parser.parse_args()
    page = PAGE.read_text()
    written = render(page, json.loads(RESULTS.read_text()))
    if args.check and written != page:
        sys.exit(f"{PAGE}: the tables differ from {RESULTS}; run tools/cache_quality/page.py")
    if not args.check:
        PAGE.write_text(written)


if __name__ == "__main__":
    main()
