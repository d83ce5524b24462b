"""Times ggml's attention and adds its figures to the cases of attention_bench.

  attention_peer.py OURS.json [--threads N] [--seconds X]    prints the ratios

OURS.json is a file that `attention_bench --json=FILE` wrote just before, with as many threads. Each
figure of ggml is that of its fastest CPU build that this machine can load; a short history decides
which build that is, for each kind, type and layout. ggml_attention.py describes the layouts and how
results are checked.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

from ggml_builds import BUILDS

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIBRARIES = ROOT / "tests/oracle/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"
# Number of builds to try, beginning with the first that the machine can load.
BUILDS_TRIED = 3
SCREENED_HISTORY = 4096
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
SHAPE = {"heads": 32, "kv_heads": 8, "head_dim": 128, "batch": 1}
KEYS = ("kind", "history", "queries", "batch", "head_dim", "type")


def available():
    return (LIBRARIES / "libggml-base.so").exists()


def kv_type(case):
    """Returns the case's type of keys and values, or None if they differ."""
    kinds = {case[key] for key in ("type", "k_type", "v_type") if key in case}
    return kinds.pop() if len(kinds) == 1 else None


def comparable(case):
    """Returns whether ggml_attention.py supports this case."""
    return (all(case.get(key) == value for key, value in SHAPE.items())
            and kv_type(case) in TYPES and case.get("window", 0) == 0
            and (case["kind"], case["queries"] > 1) in (("decode", False), ("prefill", True)))


def run(build, specs, threads, seconds):
    """Returns ggml's results for `specs`; none if the build does not run here."""
    command = [sys.executable, HERE / "ggml_attention.py", "--libraries", LIBRARIES, "--build",
               build, "--threads", threads, "--seconds", seconds]
    done = subprocess.run(list(map(str, command)), input=json.dumps(specs), capture_output=True,
                          text=True, check=False)
    if done.returncode > 0:
        raise RuntimeError(done.stderr.strip())  # a wrong result; a signal: the build cannot run
    return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []


def screen(specs, threads, log):
    """Returns {(kind, type, layout): the fastest build}."""
    shortest = {}
    for spec in sorted(specs, key=lambda spec: abs(spec["history"] - SCREENED_HISTORY)):
        shortest.setdefault((spec["kind"], spec["type"]), spec)
    best, tried = {}, 0
    for build in BUILDS:
        results = run(build, list(shortest.values()), threads, 0.2) if tried < BUILDS_TRIED else []
        tried += bool(results)
        if results:
            log(f"ggml, {build}: {len(results)} short cases")
        for result in results:
            key = (result["kind"], result["type"], result["layout"])
            rate = result["work"] / result["best_ms"]
            best[key] = max(best.get(key, (0.0, "")), (rate, build))
    if not best:
        raise RuntimeError("none of ggml's builds runs on this machine; use --no-peer")
    return {key: build for key, (_, build) in best.items()}


def measure(cases, threads, seconds, log):
    """Returns ggml's results for those of our cases that ggml_attention.py supports."""
    specs = {}
    for case in filter(comparable, cases):
        spec = {**{key: case.get(key) for key in KEYS}, "type": kv_type(case)}
        specs[tuple(spec.values())] = spec
    if not specs:
        return []
    best = screen(list(specs.values()), threads, log)
    results = []
    for build in sorted(set(best.values())):
        asked = []
        for spec in specs.values():
            layouts = [layout for layout in ("default", "heads")
                       if best[spec["kind"], spec["type"], layout] == build]
            if layouts:
                asked.append({**spec, "layouts": layouts})
        log(f"ggml, {build}: {sum(len(spec['layouts']) for spec in asked)} cases")
        results += run(build, asked, threads, seconds)
    return results


def add_peer(cases, results):
    """Sets case["peers"] to ggml's figures by layout, with our ratio to each. Rate and ratio use
    the median times or the best ones, like the case's own rate."""
    for case in filter(comparable, cases):
        time = f"{case.get('rate_of', 'best')}_ms"
        case["peers"] = {}
        for found in results:
            if found["type"] != kv_type(case) or any(found[key] != case[key] for key in KEYS[:-1]):
                continue
            case["peers"][f"ggml, {found['layout']} layout"] = {
                **{key: found[key] for key in ("build", "best_ms", "median_ms", "p99_ms", "runs",
                                               "layers", "error")},
                "rate": found["work"] / found[time] * 1e3, "ratio": found[time] / case[time]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=0.3,
                        help="seconds of timing per case and layout")
    args = parser.parse_args()
    cases = json.loads(args.ours.read_text())["cases"]
    results = measure(cases, args.threads, args.seconds, lambda text: print(text, file=sys.stderr))
    add_peer(cases, results)
    for case in filter(comparable, cases):
        print(f"{case['kind']} {case['history']:>7} {kv_type(case):<5} {case['rate']:8.1f}" +
              "".join(f"   {name} {peer['rate']:6.2f} ({peer['build']}): {peer['ratio']:5.1f}×"
                      for name, peer in case["peers"].items()))


if __name__ == "__main__":
    main()
