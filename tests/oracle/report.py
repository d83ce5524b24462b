"""Writes docs/logits.md from the figures of a test run.

Usage: report.py OUT.md FIGURES.json...

FIGURES are the files that compare.py writes, and the reports of the exactness checks with
--gtest_output=json:FILE.
"""

import collections
import json
import pathlib
import sys

TABLE_HEAD = """# Architectures

`tests/oracle/report.py` writes this page from the reports of a test run.

| architecture | the layers' caches | models | f32: KL to float64 | to llama.cpp | {checks} |
|---|---|---|---|---|{rules}|"""

TABLE_FOOT = """
*Models* counts random-weight models of several shapes and weight types. The second part of this page
describes their comparison. *KL* is the largest mean over 536 positions in nats. The positions exceed
the window and the chunk, and span several checkpoints, of models that have these. The columns after
KL count models for which all bits of all logits are equal: in chunks of 1, 7, 64 and 512 tokens, on 1
and 2 threads; in one batch with other sequences; after forks; after rewinds; in scattered cells; after
random appends, forks and rewinds of four sequences; after a snapshot was restored; from snapshots that
passes captured, merged and split; in another process, from exported bytes; after transactions that kept
some of their tokens or none. *Moved* counts models with equal logits, within
1e-4, for keys that a removal in the middle has rotated to other positions and for keys computed at
those positions. (Rotated keys are rounded twice, so their bits differ by design. Recurrent states
depend on the removed tokens, so they cannot be compared.) t5 and mllama, which have cross-attention,
have separate tests for forks and rewinds (`tests/exactness/encoder_test.cc`, `image_test.cc`).
"""

# Columns of the exactness checks, and the tests that they count.
CHECKS = {"chunks, threads": "ChunksAndThreads", "company": "InCompany",
          "forks": "AfterASharedPrefix", "rewinds": "AfterTruncation",
          "scattered": "InScatteredCells", "random": "EveryRowIsExact",
          "restored": "Restored", "captured, merged, split": "CapturedMergedAndSplit",
          "imported": "ImportedInAnotherProcess", "committed": "Committed",
          "moved": "RotatedKeysEqualComputedKeys"}

HEAD = """
# Against llama.cpp and float64

The tests run random-weight models of each architecture and setting (`tools/make_model`): {shapes}
shapes of each for every weight type, {tokens} tokens, of which llama.cpp chose the last 200, with K
and V in F32. `tests/oracle/compare.py` defines the measurements and bounds. The figures come from the
tests oracle.logits and oracle.architectures with `--slow` (`./dev report`). Without it, `./dev test` runs
one shape of each type of the first architecture, and three cases of each other setting.

Each row has the largest value of its shapes. KL is the mean over positions in nats, of our logits or
of llama.cpp's against a float64 pass over the same (dequantised) weights. For experts in block types
it is the median over positions, of four models if one model's median is too uncertain (see
compare.py). *Ratio* is the largest ratio of our KL to llama.cpp's in one shape. *Greedy clear* counts
the steps at which llama.cpp's margin exceeds its own noise; *wrong* counts those of them at which our
logits choose another token. Settings that llama.cpp does not know are compared with float64 alone,
over random tokens.
"""


def takes_median(row):
    return row["experts"] and row["type"] not in ("f32", "f16", "bf16")


def distances(row):
    """Returns (ours, llama.cpp's), the pair to which the bound of the row's type applies."""
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
    """Yields (architecture, test name, kinds of cache, passed) of each test."""
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
    """Returns a line per architecture: the numbers of compared and of equal models."""
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
    counts = [len(each) for types in variants.values() for each in types.values()]
    shapes = counts[0] if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
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
