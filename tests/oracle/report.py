"""Writes docs/architectures.md from the figures of a test run.

Usage: report.py OUT.md FIGURES.json...

FIGURES are those that compare.py leaves behind, and what the exactness checks report with
--gtest_output=json:FILE.
"""

import collections
import json
import pathlib
import sys

TABLE_HEAD = """# Architectures

This page is written by `tests/oracle/report.py` from the reports of a test run.

| architecture | its layers' caches | models | f32: KL to float64 | to llama.cpp | {checks} |
|---|---|---|---|---|{rules}|"""

TABLE_FOOT = """
*Models* are random-weight models of several shapes and weight types, each compared as the second
part of this page says; *KL* is the worst mean over 536 positions in nats, past the window, the chunk
and several checkpoints of those that have them. The columns after it count models for which all bits
of all logits are the same: in chunks of 1, 7, 64 and 512 tokens, on 1 and 2 threads; in one batch
with other sequences; after forks; after rewinds; in scattered cells; after random appends, forks and
rewinds of four sequences. *Moved* counts models whose keys, turned to other positions by a removal
in the middle, answer like those computed there (within 1e-4: turned keys are rounded once more, so
their bits differ by design; recurrent states take in what was before, so there is nothing to compare).
t5 and mllama, whose layers look at what an encoder put, have tests of their own for forks and rewinds
(`tests/exactness/encoder_test.cc`, `image_test.cc`).
"""

# What the exactness checks show of a model, and the tests that show it.
CHECKS = {"chunks, threads": "ChunksAndThreads", "company": "InCompany",
          "forks": "AfterASharedPrefix", "rewinds": "AfterTruncation",
          "scattered": "InScatteredCells", "random": "EveryRowIsExact",
          "moved": "TurnedKeysAreThoseComputedThere"}

HEAD = """
# Against llama.cpp and float64

Random-weight models of each architecture and setting (`tools/make_model`), {shapes} shapes of each
for every weight type; {tokens} tokens, of which the last 200 were chosen by llama.cpp; K and V in
F32. `tests/oracle/compare.py` says what is measured and which bounds hold; the figures are those of
the tests oracle.logits and oracle.matrix (`./dev report`). `./dev test` has two shapes of three types
of each setting (oracle.architectures).

Each row has the worst of its shapes. KL is the mean over positions in nats, of our logits or of
llama.cpp's against a float64 pass over the same (dequantised) weights; for experts in block types it
is the median position's, of four models where one's says too little, as compare.py explains. *Ratio* is the largest of ours to llama.cpp's in
one shape. *Greedy* counts the steps at which llama.cpp's margin exceeds its own noise, and those of
them at which ours chose another token. What llama.cpp does not know is compared with float64 alone,
over tokens that are all random.
"""


def takes_median(row):
    return row["experts"] and row["type"] not in ("f32", "f16", "bf16")


def distances(row):
    """(ours, llama.cpp's): the pair that the bound of the row's type is about."""
    if takes_median(row):
        return row["median_ours_truth"], row.get("median_llama_truth")
    return row["kl_ours_truth"], row.get("kl_llama_truth")


def line(name, rows):
    ours, llama = zip(*map(distances, rows))
    median = " (median)" if takes_median(rows[0]) else ""
    if rows[0].get("alone"):
        return f"| {name}{median} | {len(rows)} | {max(ours):.1e} | | | | |"
    ratio = max(a / b for a, b in zip(ours, llama))
    clear = sum(row["greedy_clear"] for row in rows)
    wrong = sum(len(row["greedy_wrong"]) for row in rows)
    return (f"| {name}{median} | {len(rows)} | {max(ours):.1e} | {max(llama):.1e} | {ratio:.3g} |"
            f" {clear} | {wrong} |")


def exactness_tests(reports):
    """(architecture, test's name, its kinds of cache, did it pass) of each."""
    for suite in (suite for report in reports for suite in report.get("testsuites", [])):
        for test in suite["testsuite"]:
            if "architecture" in test:
                passed = test["result"] == "COMPLETED" and "failures" not in test
                yield test["architecture"], test["name"].split("/")[0], test["cache"], passed


def table_line(architecture, rows, tests):
    f32 = [row for row in rows if row["type"] == "f32"]
    oracle = [row["kl_ours_llama"] for row in f32 if "kl_ours_llama" in row]
    kinds = sorted({kind for _, _, cache, _ in tests for kind in cache.split(", ")})
    cells = [architecture, ", ".join(kinds), str(len(rows)),
             f"{max(row['kl_ours_truth'] for row in f32):.0e}",
             f"{max(oracle):.0e}" if oracle else "not known there"]
    for check in CHECKS.values():
        results = [passed for _, name, _, passed in tests if name == check]
        cells.append(f"{sum(results)} of {len(results)}" if results else "-")
    return f"| {' | '.join(cells)} |"


def table(rows, reports):
    """One line for each architecture: what was compared, and what was found the same."""
    tests = list(exactness_tests(reports))
    lines = [TABLE_HEAD.format(checks=" | ".join(CHECKS), rules="|".join(["---"] * len(CHECKS)))]
    for architecture in dict.fromkeys(row["architecture"] for row in rows):
        lines.append(table_line(architecture,
                                [row for row in rows if row["architecture"] == architecture],
                                [test for test in tests if test[0] == architecture]))
    return [*lines, TABLE_FOOT]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    reports = [json.loads(pathlib.Path(name).read_text()) for name in sys.argv[2:]]
    variants = collections.defaultdict(lambda: collections.defaultdict(list))
    rows = [row for report in reports for row in report.get("rows", [])]
    for row in rows:
        variants[row["variant"]][row["type"]].append(row)
    least = min(len(each) for types in variants.values() for each in types.values())
    most = max(len(each) for types in variants.values() for each in types.values())
    shapes = least if least == most else f"{least} to {most}"
    text = table(rows, reports)
    text += [HEAD.format(shapes=shapes, tokens=rows[0]["positions"])]
    for variant, types in variants.items():
        alone = next(iter(types.values()))[0].get("alone")
        note = [f"With float64 alone: {alone}.\n"] if alone else []
        text += [f"\n## {variant}\n", *note, "| weights | shapes | ours | llama.cpp | ratio | greedy clear | wrong |",
                 "|---|---|---|---|---|---|---|"]
        text += [line(name, each) for name, each in types.items()]
    pathlib.Path(sys.argv[1]).write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
