"""Times the start of `kvcache run` with and without packed weights, in turns, for files of models.

    python3 bench/startup.py build/dev/kvcache MODEL… [--rounds N]

Prints a row of docs/performance.md for each model and state of the page cache: medians, in seconds for each GB of the
model's file. `ready` ends when the model is loaded, `token` when the first token of a prompt of one token is there.
Processor time is that of the whole program, with its end.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time


def drop(path):
    """Takes a file out of the page cache."""
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def start(program, model, packed):
    """Returns the seconds until the model is ready and of its first token, and the processor's seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([program, "run", model, "-p", "a", "--raw", "-n", "1", "--json", "--store", "none", "--ctx", "512",
                           "--gpu-layers", "0", "--packed-weights", packed], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    timing = json.loads(done.stdout)["timing"]
    ready = timing["load_ms"] / 1000
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ready, ready + timing["ttft_ms"] / 1000, cpu


def keep(program, model, folder):
    """Packs the model into the folder. A chat waits meanwhile: a command that answers once would give a long write up."""
    with subprocess.Popen([program, "run", model, "--store", "none", "--ctx", "512", "--gpu-layers", "0", "--packed-weights",
                           folder], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as chat:
        while chat.poll() is None and not any(pathlib.Path(folder).glob("*.kvpanels")):
            time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    print("| model, page cache | ready, packed at the start | mapped | ratio | with the first token, packed | mapped | ratio "
          "| processor, packed | mapped |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for model in flags.models:
        gigabytes = os.path.getsize(model) / 1e9
        with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(model))) as folder:
            keep(flags.program, model, folder)
            files = [model, *map(str, pathlib.Path(folder).iterdir())]
            assert len(files) == 2, "nothing was kept"
            for cache in ("warm", "cold"):
                times = {"off": [], folder: []}
                for _ in range(flags.rounds):
                    for packed, rows in times.items():
                        if cache == "cold":
                            for file in files:
                                drop(file)
                        rows.append([value / gigabytes for value in start(flags.program, model, packed)])
                off, kept = ([statistics.median(column) for column in zip(*rows)] for rows in times.values())
                ratios = [statistics.median(a[i] / b[i] for a, b in zip(*times.values())) for i in (0, 1)]
                print(f"| {pathlib.Path(model).stem}, {cache} | {off[0]:.2f} | {kept[0]:.2f} | {ratios[0]:.1f}× "
                      f"| {off[1]:.2f} | {kept[1]:.2f} | {ratios[1]:.1f}× | {off[2]:.2f} | {kept[2]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
