"""Runs the benchmarks and writes their results. ./dev bench builds the benchmarks and calls this.

Every result is checked before it is timed. Each benchmark writes one file, OUT/NAME.json, in the
format of bench/README.md: its cases, with the machine's limits measured in the same run and with a
peer's figures if the peer is installed. Run it on a quiet machine: threads wait by spinning.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

from machine_facts import FORMAT, ROOT, describe_machine
from suite import BENCHES, Run, machine


def summary(case):
    """Returns a line for people."""
    text = f"  {case['name']:<44}"
    if "median_ms" in case:
        text += f" median {case['median_ms']:10.3f} ms"
    if "rate" in case:
        text += f"  {case['rate']:9.1f} {case['unit']}"
    if "limit" in case:
        text += f" = {case['share']:4.0%} of {case['limit']:.1f}"
    for name, peer in case.get("peers", {}).items():
        text += f"; {peer['ratio']:.1f}× {name}"
    return text


def kept(path, cases):
    """Returns the file's cases that were not measured again."""
    names = {case["name"] for case in cases}
    old = json.loads(path.read_text())["cases"] if path.exists() else []
    return [case for case in old if case["name"] not in names]


def run_one(name, run, args):
    """Runs a benchmark and writes its file."""
    start = time.monotonic()
    run.machine = {**describe_machine(), **machine(run)}
    cases = BENCHES[name][0](run)
    if not cases:
        raise RuntimeError(f"no case of {name} matches the options; check --filter and --kv-types")
    seconds = time.monotonic() - start
    path = args.out / f"{name}.json"
    others = kept(path, cases) if args.append else []
    path.write_text(json.dumps(
        {"format": FORMAT, "bench": name, "machine": run.machine,
         "settings": {"quick": run.quick, "seconds": round(seconds, 1)},
         "cases": others + cases},
        indent=1) + "\n")
    for case in cases:
        if "peers" in case or name in ("decode", "prefill"):  # the programs print the others
            print(summary(case))
    print(f"{len(cases)} cases in {path}, {seconds:.0f} s", flush=True)


def parse_arguments():
    listed = "\n".join(f"  {name:<11}{what}" for name, (_, what) in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="./dev bench", description=__doc__, epilog=f"benchmarks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help="benchmarks to run (default: all)")
    parser.add_argument("--quick", action="store_true",
                        help="run small shapes, in about a minute")
    parser.add_argument("--append", action="store_true",
                        help="keep the cases of a file that are not measured again")
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="do not time ggml")
    parser.add_argument("--kv-types", nargs="+", metavar="TYPE",
                        help="types of keys and values (default: all for attention, f16 q8_0 q4_0 "
                        "for models)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/bench")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "build/peer",
                        help="folder of the models, which are written if missing (1.6 GB)")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    arguments = sys.argv[1:]
    rest = arguments[arguments.index("--") + 1:] if "--" in arguments else []
    args = parser.parse_args(arguments[:len(arguments) - len(rest) - ("--" in arguments)])
    args.rest = rest  # for the programs themselves
    for name in args.names:
        if name not in BENCHES:
            parser.error(f"unknown benchmark '{name}'; the benchmarks are: {' '.join(BENCHES)}")
    return args


def main():
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    run = Run(args, lambda text: print(text, file=sys.stderr, flush=True))
    names, failed = args.names or list(BENCHES), []
    for i, name in enumerate(names, 1):
        print(f"\033[1m== {name}: {BENCHES[name][1]} ({i} of {len(names)})\033[0m", flush=True)
        try:
            run_one(name, run, args)
        except (subprocess.CalledProcessError, RuntimeError) as error:
            print(f"{name} failed: {error}", file=sys.stderr)
            failed.append(name)
    if failed:
        sys.exit("failed: " + " ".join(failed))


if __name__ == "__main__":
    main()
