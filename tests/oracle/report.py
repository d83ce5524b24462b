"""Writes docs/architectures.md from the figures that compare.py leaves behind.

Usage: report.py OUT.md FIGURES.json...
"""

import collections
import json
import pathlib
import sys

HEAD = """# Architectures against llama.cpp and float64

Random-weight models of each architecture and setting (`tools/make_model`), {shapes} shapes of each
for every weight type; {tokens} tokens, of which the last 200 were chosen by llama.cpp; K and V in
F32. `tests/oracle/compare.py` says what is measured and which bounds hold; this page is written by
`tests/oracle/report.py` from its figures, those of the tests oracle.logits and oracle.matrix.

Each row has the worst of its shapes. KL is the mean over positions in nats, of our logits or of
llama.cpp's against a float64 pass over the same (dequantised) weights; for experts in block types it
is the median position's, as compare.py explains. *Ratio* is the largest of ours to llama.cpp's in
one shape. *Greedy* counts the steps at which llama.cpp's margin exceeds its own noise, and those of
them at which ours chose another token. What llama.cpp does not know is compared with float64 alone,
over tokens that are all random.
"""


def distances(row):
    """(ours, llama.cpp's): the pair that the bound of the row's type is about."""
    if row["experts"] and row["type"].startswith("q"):
        return row["median_ours_truth"], row.get("median_llama_truth")
    return row["kl_ours_truth"], row.get("kl_llama_truth")


def line(name, rows):
    ours, llama = zip(*map(distances, rows))
    median = " (median)" if rows[0]["experts"] and name.startswith("q") else ""
    if rows[0].get("alone"):
        return f"| {name}{median} | {len(rows)} | {max(ours):.1e} | | | | |"
    ratio = max(a / b for a, b in zip(ours, llama))
    clear = sum(row["greedy_clear"] for row in rows)
    wrong = sum(len(row["greedy_wrong"]) for row in rows)
    return (f"| {name}{median} | {len(rows)} | {max(ours):.1e} | {max(llama):.1e} | {ratio:.3g} |"
            f" {clear} | {wrong} |")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    variants = collections.defaultdict(lambda: collections.defaultdict(list))
    rows = [row for name in sys.argv[2:]
            for row in json.loads(pathlib.Path(name).read_text())["rows"]]
    for row in rows:
        variants[row["variant"]][row["type"]].append(row)
    least = min(len(each) for types in variants.values() for each in types.values())
    most = max(len(each) for types in variants.values() for each in types.values())
    shapes = least if least == most else f"{least} to {most}"
    text = [HEAD.format(shapes=shapes, tokens=rows[0]["positions"])]
    for variant, types in variants.items():
        alone = next(iter(types.values()))[0].get("alone")
        note = [f"With float64 alone: {alone}.\n"] if alone else []
        text += [f"\n## {variant}\n", *note, "| weights | shapes | ours | llama.cpp | ratio | greedy clear | wrong |",
                 "|---|---|---|---|---|---|---|"]
        text += [line(name, each) for name, each in types.items()]
    pathlib.Path(sys.argv[1]).write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
