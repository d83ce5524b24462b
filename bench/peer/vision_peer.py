"""Compares the time of Gemma 3's vision tower with that of ggml's operations, in turns.

  vision_peer.py --oracle BUILD/tests/oracle/vision/vision_oracle [--type f16] [--layers 2] [--size 896] [--threads 1]
                 [--rounds 3] [--builds icelake,zen4] [--libraries FOLDER]

Makes a random tower of the shape of SigLIP So400m (width 1152, 16 heads of 72, feed-forward part 4304, patches of 14 pixels),
of fewer layers than its 27 unless --layers says so: all layers take the same time. ggml_tower.py says what ggml computes; its
figure is that of its fastest build and kind of attention, which a round of one layer decides. Ratios are those of processor time with
one thread, else of the wall clock. The embeddings of both are compared.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np

from ggml_builds import BUILDS

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIBRARIES = ROOT / "tests/oracle/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"
BUILDS_TRIED = 3
LARGEST_ERROR = 2e-2  # relative to the root of the mean square


def make(args, layers, path):
    settings = {"path": path, "projector": "gemma3", "type": args.type, "image_size": args.size,
                "patch_size": 14, "width": 1152, "heads": 16, "ffn": 4304, "layers": layers,
                "merge": 4, "embedding_width": 2560}
    subprocess.run([args.oracle, "make", *(f"{key}={value}" for key, value in settings.items())],
                   check=True)


def ours(args, model, rgb):
    """Returns wall and processor seconds, and the embeddings."""
    command = [args.oracle, "embed", model, args.size, args.size, args.threads, 1]
    done = subprocess.run(list(map(str, command)), input=rgb.tobytes(), capture_output=True, check=True)
    wall, processor = map(float, done.stderr.split()[1:3])
    return (wall, processor), np.frombuffer(done.stdout, np.float32)


def ggml(args, build, model, folder):
    """Returns {kind of attention: (wall, processor) seconds}, and their embeddings; nothing if the build does not run."""
    out = folder / "ggml.npy"
    command = [sys.executable, HERE / "ggml_tower.py", "--libraries", args.libraries, "--build", build,
               "--projector", model, "--pixels", folder / "pixels.npy", "--out", out, "--threads",
               args.threads]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        return {}, {}
    times = {name: rounds[0] for name, rounds in json.loads(done.stdout).items()}
    return times, {name: np.load(out.with_suffix(f".{name}.npy")) for name in times}


def fastest(args, folder):
    """Returns the build and the kind of attention."""
    model, found, tried = folder / "one.gguf", [], 0
    make(args, 1, model)
    for build in args.builds or BUILDS:
        times, _ = ggml(args, build, model, folder) if tried < BUILDS_TRIED else ({}, {})
        tried += bool(times)
        for name, (wall, processor) in times.items():
            print(f"ggml, {build}, {name}: {processor:.2f} s of one layer", flush=True)
            found.append((processor if args.threads == 1 else wall, build, name))
    model.unlink()
    if not found:
        sys.exit("none of ggml's builds runs on this machine")
    return min(found)[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", type=pathlib.Path, required=True)
    parser.add_argument("--libraries", type=pathlib.Path, default=LIBRARIES)
    parser.add_argument("--type", default="f16")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--size", type=int, default=896, help="pixels a side, a multiple of 56")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--builds", type=lambda names: names.split(","), help="of ggml's, to try")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rgb = np.random.default_rng(3).integers(0, 256, (args.size, args.size, 3)).astype(np.uint8)
        mean, deviation = (np.array(values, np.float32) for values in ((.5, .45, .4), (.5, .25, .3)))
        np.save(folder / "pixels.npy", (rgb.astype(np.float32) / np.float32(255) - mean) / deviation)
        build, kind = fastest(args, folder)
        model, ratios, clock = folder / "tower.gguf", [], 1 if args.threads == 1 else 0
        make(args, args.layers, model)
        for _ in range(args.rounds):
            mine, embeddings = ours(args, model, rgb)
            times, results = ggml(args, build, model, folder)
            theirs = results[kind]
            error = np.sqrt(((embeddings.reshape(theirs.shape) - theirs) ** 2).mean()
                            / (theirs ** 2).mean())
            if not error < LARGEST_ERROR:
                sys.exit(f"the embeddings differ by {error}; must be below {LARGEST_ERROR}")
            ratios.append(times[kind][clock] / mine[clock])
            print(f"{args.layers} layers, {(args.size // 14) ** 2} patches, {args.type}: ours {mine[clock]:.2f} s, "
                  f"ggml ({build}, {kind}) {times[kind][clock]:.2f} s, {ratios[-1]:.2f}x; "
                  f"difference {error:.1e}", flush=True)
        print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
