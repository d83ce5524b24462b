"""Makes the charts and tables of docs/performance.md from the results in docs/performance.

  book.py            writes docs/performance/*.svg, and the tables in docs/performance.md
  book.py --check    lists the files that would change, and fails if there are any

docs/performance/*.json are results of `./dev bench` and bench/peer/run.sh (bench/README.md
describes the format). A table is between `<!-- table: NAME -->` and `<!-- end -->`; the text around
it is written by hand.
"""

import argparse
import json
import pathlib
import re
import sys

from chart import Chart, Line
from machine_facts import FORMAT, ROOT

COLORS = {"f16": "blue", "q8_0": "orange", "q4_0": "green", "bf16": "purple", "f32": "grey"}
TYPES = list(COLORS)
READING = ["attention", "targets", "decode"]  # except for prefill, their limit is the bandwidth
CONTEXTS = [0, 1024, 4096, 16384, 32768, 65536, 131072]


class Book:
    def __init__(self, folder):
        self.results = {path.stem: json.loads(path.read_text())
                        for path in sorted(folder.glob("*.json"))}
        for name, result in self.results.items():
            check_format(name, result)

    def cases(self, bench, **wanted):
        """Returns the benchmark's cases that have these values, sorted by type and history. Returns
        none if there is no file."""
        found = [case for case in self.results.get(bench, {"cases": []})["cases"]
                 if all(case.get(key) == value for key, value in wanted.items())]
        return sorted(found, key=lambda case: (order(case.get("type")), case["history"]))

    def machine(self, bench):
        m = self.results[bench]["machine"]
        return (f"{m['cpu']}, {m['threads']} threads of {m['cores']} cores, kernels for "
                f"{m['target']}, compiler {m['compiler']}. Reads {m['read_gb_per_s']:.1f} GB/s, f32 "
                f"FMA {m['f32_gflop_per_s']:.0f} GFLOP/s, int8 dot products "
                f"{m['int8_gop_per_s']:.0f} GOP/s, measured right before.")


def check_format(name, result):
    """Refuses files that are not results and results that contradict themselves."""
    if result.get("format") != FORMAT:
        sys.exit(f"{name}.json: format is {result.get('format')!r}; must be {FORMAT!r}")
    names = [case["name"] for case in result["cases"]]
    twice = {case for case in names if names.count(case) > 1}
    if twice:
        sys.exit(f"{name}.json: two cases have the name {sorted(twice)[0]!r}; names must be unique")
    for case in result["cases"]:
        check_shares(name, case)


def check_shares(name, case):
    if name in READING and case["kind"] != "prefill" and "plain_limit" not in case:
        sys.exit(f"{name}.json: {case['name']}: plain_limit is missing; measure the case again")
    for share, limit in (("share", "limit"), ("plain_share", "plain_limit")):
        if share in case and abs(case[share] - case["rate"] / case[limit]) > 2e-3:
            sys.exit(f"{name}.json: {case['name']}: {share} is {case[share]}; must be "
                     f"{case['rate']} / {case[limit]}")


def order(kind):
    """Returns the sort key of a type: mixed types come last."""
    return TYPES.index(kind) if kind in TYPES else len(TYPES)


def points(cases, of=lambda case: case["rate"]):
    return [(case["history"], of(case)) for case in cases]


# ---- charts --------------------------------------------------------------------------------


def attention_decode(book):
    lines = []
    for kind in TYPES[:3]:
        cases = book.cases("attention", kind="decode", queries=1, batch=1, head_dim=128, type=kind)
        if kind == "f16":
            lines.append(Line("read bandwidth", points(cases, lambda case: case["limit"]), "grey",
                              "limit"))
        lines.append(Line(f"kvcache {kind}", points(cases), COLORS[kind]))
        peer = [case for case in cases if "ggml, heads layout" in case.get("peers", {})]
        lines.append(Line(f"ggml {kind}", points(
            peer, lambda case: case["peers"]["ggml, heads layout"]["rate"]), COLORS[kind], "peer"))
    return Chart("Decode attention: bandwidth over the length of the history",
                 "32 query heads over 8 K/V heads of 128, one query; ggml in its better layout",
                 "history, tokens", "GB/s of keys and values", lines, CONTEXTS[1:])


def by_context(book, kind, title, subtitle):
    lines = []
    for cache in TYPES[:3]:
        cases = book.cases(kind, kind=kind, type=cache)
        lines.append(Line(f"limit, {cache} cache", points(cases, lambda case: case["limit"]),
                          COLORS[cache], "limit"))
        lines.append(Line(f"kvcache, {cache} cache", points(cases), COLORS[cache]))
        peer = [case for case in book.cases("llama_cpp", kind=kind, type=cache, weights="q8_0")
                if "peers" in case]
        lines.append(Line(f"llama.cpp, {cache} cache", points(
            peer, lambda case: case["peers"]["llama.cpp"]["rate"]), COLORS[cache], "peer"))
    histories = {x for line in lines for x, _ in line.points}
    return Chart(title, subtitle, "context, tokens", "tokens per second", lines,
                 [c for c in CONTEXTS if c <= max(histories, default=0)])


def decode_context(book):
    return by_context(book, "decode", "Decode over context",
                      "1B-class model, Q8_0 weights; limit: (weights + history) at the bandwidth of "
                      "the same run")


def prefill_depth(book):
    return by_context(book, "prefill", "Prefill of 512 tokens over context",
                      "1B-class model, Q8_0 weights; limit: all multiply-adds at the peak of their "
                      "kind")


FIGURES = {"attention_decode": attention_decode, "decode_context": decode_context,
           "prefill_depth": prefill_depth}


# ---- tables --------------------------------------------------------------------------------


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |",
             "|" + "|".join("---" if i == 0 else "---:" for i in range(len(columns))) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


LIMITS = ["limit", "share", "share of plain loop"]


def against_limits(case):
    """Returns the columns of LIMITS. Prefill has no plain loop."""
    plain = f"{case['plain_share']:.0%}" if "plain_share" in case else ""
    return [f"{case['limit']:.1f}", f"{case['share']:.0%}", plain]


def attention_table(book, kind):
    rows = []
    limits = LIMITS if kind == "decode" else LIMITS[:2]
    for case in book.cases("attention", kind=kind, batch=1):
        if case["type"] not in TYPES or (kind == "decode" and case["queries"] > 1):
            continue
        peers = [case.get("peers", {}).get(f"ggml, {layout} layout")
                 for layout in ("default", "heads")]
        head = "" if case["head_dim"] == 128 else f", heads of {case['head_dim']}"
        rows.append([f"{case['type']}, {case['history']:,}{head}", f"{case['rate']:.1f}",
                     *against_limits(case)[:len(limits)],
                     *(f"{p['rate']:.2f} ({p['ratio']:.1f}×)" if p else "" for p in peers)])
    unit = "GB/s" if kind == "decode" else "GFLOP/s"
    return table([f"{kind}: type, history", f"kvcache, {unit}", *limits,
                  "ggml, llama.cpp's layout", "ggml, its better layout"], rows)


def attention_row(case, what):
    return [what, f"{case['rate']:.1f} {case['unit']}", *against_limits(case)]


def batch_table(book):
    """Returns the table of batches with several sequences or several query tokens."""
    rows = [attention_row(case, f"{case['type']}, {case['batch']} × {case['history']:,}, "
                          f"{case['queries']} quer{'y' if case['queries'] == 1 else 'ies'}")
            for case in book.cases("attention", kind="decode")
            if case["type"] in TYPES and (case["batch"] > 1 or case["queries"] > 1)]
    return table(["type, sequences × history", "kvcache", *LIMITS], rows)


def mixed_table(book):
    rows = [attention_row(case, f"K {case['k_type']}, V {case['v_type']}, {case['kind']} at "
                          f"{case['history']:,}")
            for case in book.cases("attention") if case["type"] not in TYPES]
    return table(["types", "kvcache", *LIMITS], rows)


def targets_table(book):
    """Returns the table of the machine's instruction sets, in the order of the file: best first."""
    cases = book.results.get("targets", {"cases": []})["cases"]
    found = {(case["target"], case["type"], case["kind"]): case for case in cases}
    rows = []
    for target, kind in dict.fromkeys((target, kind) for target, kind, _ in found):
        decode, prefill = (found[target, kind, what] for what in ("decode", "prefill"))
        rows.append([f"{target}, {kind}", f"{decode['rate']:.1f}", *against_limits(decode),
                     f"{prefill['rate']:.1f}", *against_limits(prefill)[:2]])
    return table(["instruction set, type", "decode, GB/s", *LIMITS, "prefill, GFLOP/s",
                  *LIMITS[:2]], rows)


def shared_table(book):
    """Compares sequences that share all but their last tokens with as many that share nothing."""
    rows = []
    shared = book.cases("attention", kind="shared")
    for kind in dict.fromkeys(case["type"] for case in shared):
        found = {case["batch"]: case for case in shared if case["type"] == kind}
        history = found[16]["history"]
        apart = {case["batch"]: case
                 for case in book.cases("attention", kind="decode", type=kind, history=history,
                                        queries=1, head_dim=128)}
        rows.append([kind, *(f"{case['median_ms']:.1f}" for case in (
            apart[1], found[4], found[16], apart[16])),
            f"{apart[16]['median_ms'] / found[16]['median_ms']:.1f}×"])
    return table(["type", "1 sequence, ms", "4 sharing", "16 sharing", "16 not sharing",
                  "speedup of 16 by sharing"], rows)


def window_table(book):
    found = {}
    for case in book.cases("attention", kind="window"):
        found.setdefault((case["type"], case["window"]), []).append(case)
    rows = [[f"{kind}, {window:,} at {far['history']:,}", f"{1e3 * far['median_ms']:.0f}",
             f"{1e3 * near['median_ms']:.0f} at {near['history']:,}",
             f"{far['median_ms'] / near['median_ms']:.2f}"]
            for (kind, window), (near, far) in found.items()]
    return table(["type, window and position", "µs", "µs at a lower position", "ratio"], rows)


def of_limit(case):
    plain = f" ({case['plain_share']:.0%})" if "plain_share" in case else ""
    return f"{case['rate']:.1f} of {case['limit']:.1f}, {case['share']:.0%}{plain}"


def context_table(book, kind):
    found = {(case["history"], case["type"]): case for case in book.cases(kind, kind=kind)}
    kinds = sorted({cache for _, cache in found}, key=order)
    rows = []
    for history in sorted({history for history, _ in found}):
        cases = [found.get((history, cache)) for cache in kinds]
        rows.append([f"{history:,}", *(of_limit(case) if case else "" for case in cases),
                     f"{max(c['history_repeated'] for c in cases if c):,}"])
    return table(["context", *(f"{cache} cache, tokens/s of limit" for cache in kinds),
                  "repeated tokens"], rows)


def llama_cpp_table(book):
    rows = []
    for case in sorted(book.cases("llama_cpp"),
                       key=lambda c: (c["weights"] != "q8_0", order(c["type"]), c["kind"])):
        if "peers" not in case:
            continue
        peer = case["peers"]["llama.cpp"]
        flash = "on" if peer["flash_attention"] else "off"
        what = "prefill 512" if case["kind"] == "prefill" else "decode"
        rows.append([f"{case['weights']}, {case['type']} cache, {what} at {case['history']:,}",
                     f"{case['rate']:.1f}", f"{peer['rate']:.1f} ({peer['build']}, flash {flash})",
                     f"{peer['ratio']:.2f}×", f"{case['limit']:.1f}",
                     f"{case['share']:.0%} ({peer['share']:.0%})"])
    return table(["weights, cache, test", "kvcache", "llama.cpp at its best", "ratio", "limit",
                  "share of the limit (llama.cpp's)"], rows)


def metadata_table(book):
    cases = book.results["metadata"]["cases"]
    sizes = sorted({case["cells"] for case in cases})
    found = {(case["kind"], case["cells"]): case for case in cases}
    rows = [[kind, *(f"{1e3 * found[kind, size]['median_ms']:.2f}" for size in sizes)]
            for kind in dict.fromkeys(case["kind"] for case in cases)]
    return table(["µs, median", *(f"{size:,} cells" for size in sizes)], rows)


TABLES = {
    "attention decode": lambda book: attention_table(book, "decode"),
    "attention prefill": lambda book: attention_table(book, "prefill"),
    "attention batches": batch_table,
    "attention mixed types": mixed_table,
    "attention shared": shared_table,
    "attention windows": window_table,
    "attention targets": targets_table,
    "decode": lambda book: context_table(book, "decode"),
    "prefill": lambda book: context_table(book, "prefill"),
    "llama.cpp": llama_cpp_table,
    "metadata": metadata_table,
    "attention machine": lambda book: book.machine("attention"),
    "targets machine": lambda book: book.machine("targets"),
    "decode machine": lambda book: book.machine("decode"),
    "llama.cpp machine": lambda book: book.machine("llama_cpp"),
}


def with_tables(book, text):
    def fill(match):
        name = match.group(1)
        if name not in TABLES:
            sys.exit(f"docs/performance.md: unknown table {name!r}; the tables are: "
                     + ", ".join(TABLES))
        return f"<!-- table: {name} -->\n{TABLES[name](book)}\n<!-- end -->"
    return re.sub(r"<!-- table: (.+?) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true",
                        help="list the files that would change instead of writing them")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/performance.md")
    args = parser.parse_args()
    folder = args.page.with_suffix("")
    book = Book(folder)
    charts = {name: figure(book) for name, figure in FIGURES.items()}
    wanted = {folder / f"{name}.svg": chart.svg() for name, chart in charts.items()
              if any(line.points for line in chart.lines)}
    wanted[args.page] = with_tables(book, args.page.read_text())
    stale = [path for path, content in wanted.items()
             if not path.exists() or path.read_text() != content]
    for path in stale:
        print(f"{path}: "
              f"{'differs from the results; run bench/book.py' if args.check else 'written'}")
        if not args.check:
            path.write_text(wanted[path])
    return 1 if stale and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
