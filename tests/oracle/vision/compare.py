"""Compares the embeddings of vision towers with float64 and with llama.cpp.

The pictures have sizes that no program resizes, so that all three see the same pixels. An error is the root of the mean
square of the differences from float64, over that of float64's values. llama.cpp rounds pixels and the patches' kernel to f16,
so its own error is larger; of quantised weights both round the inputs of products. The program skips llama.cpp where its npm
package is not installed (another processor than x86-64).
"""

import argparse
import pathlib
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import reference_towers  # noqa: E402  (the path comes first)

LIBRARY = HERE.parent / "node_modules/@fugood/node-llama-linux-x64/index.node"
# Of our error. The second number is a factor on llama.cpp's.
LIMITS = {"f32": (3e-6, 1), "f16": (3e-6, 1), "bf16": (3e-6, 1), "q8_0": (6e-2, 1.3)}
LLAMA_LIMITS = {"bf16": 1e-2, "q8_0": 6e-2}  # 3e-3 else
CASES = [
    # settings of a file, sizes of pictures in pixels
    ("gemma3 type=f32", [(64, 64)]),
    ("gemma3 type=f16 width=72 heads=1 image_size=96 merge=3", [(96, 96)]),
    ("gemma3 type=bf16 swapped_ffn=1 layers=1 patch_size=14 image_size=112 merge=2", [(112, 112)]),
    ("gemma3 type=q8_0 width=64 ffn=96", [(64, 64)]),
    # More patches than a step and than a split of attention has.
    ("gemma3 type=f32 patch_size=4 image_size=96 merge=4 layers=2", [(96, 96)]),
    # Windows of 4 x 4 tokens, 28 pixels each: one, whole ones, smaller ones at the edges.
    ("qwen2.5vl_merger type=f32 patch_size=14 merge=2", [(112, 84), (224, 224), (252, 140)]),
    ("qwen2.5vl_merger type=f16 patch_size=14 merge=2 layers=5 whole_layer_step=3 width=64",
     [(308, 364)]),
    ("qwen2.5vl_merger type=q8_0 patch_size=14 merge=2 width=64 ffn=96", [(168, 140)]),
    ("qwen3vl_merger type=f32 patch_size=16 merge=2 image_size=96 min_pixels=1024",
     [(96, 96), (256, 128), (160, 288)]),
    ("qwen3vl_merger type=f16 patch_size=16 merge=2 image_size=64 layers=4 deep_step=3",
     [(384, 384)]),
    ("qwen3vl_merger type=q8_0 patch_size=16 merge=2 width=64 ffn=96", [(256, 256)]),
    ("pixtral type=f32 patch_size=16 image_size=512 merge=1", [(64, 48), (160, 16), (512, 384)]),
    ("pixtral type=q8_0 patch_size=16 image_size=512 merge=1 width=64 ffn=96 embedding_width=64",
     [(96, 64)]),
    # As large as pictures become: 280 tokens at most.
    ("gemma4v type=f32 patch_size=16 merge=3 image_size=4480", [(768, 768), (1152, 528)]),
    ("gemma4v type=f16 patch_size=16 merge=3 image_size=4480 limits=1 layers=2", [(768, 768)]),
    ("gemma4v type=f16 patch_size=16 merge=3 image_size=4480 limits=2 layers=2", [(768, 768)]),
    ("gemma4v type=q8_0 patch_size=16 merge=3 image_size=4480 width=64 ffn=96", [(768, 768)]),
    # Mistral 3.
    ("pixtral type=f32 patch_size=14 image_size=1540 merge=2", [(112, 84), (336, 280)]),
    ("pixtral type=q8_0 patch_size=14 image_size=1540 merge=2 width=64 ffn=96 embedding_width=64",
     [(140, 112)]),
]


def ours(args, model, rgb, threads):
    command = [args.program, "embed", model, rgb.shape[1], rgb.shape[0], threads, 1]
    done = subprocess.run(list(map(str, command)), input=rgb.tobytes(), capture_output=True)
    if done.returncode != 0:
        sys.exit(f"vision: {done.stderr.decode()}")
    return np.frombuffer(done.stdout, np.float32)


def llama(args, model, rgb):
    mean, deviation = (np.array(reference_towers.Tower(model).key(key), np.float32)
                       for key in ("image_mean", "image_std"))
    pixels, out = args.work / "pixels.npy", args.work / "llama.npy"
    np.save(pixels, (rgb.astype(np.float32) / np.float32(255) - mean) / deviation)
    command = [sys.executable, HERE / "llama_cpp.py", LIBRARY, model, pixels, out, 1, 1]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"vision: llama.cpp: {done.stderr[-2000:]}")
    return np.load(out)


def error(got, truth):
    return np.sqrt(((got.reshape(truth.shape) - truth) ** 2).mean() / (truth ** 2).mean())


def check_picture(args, model, weight_type, size, seed, differ):
    width, height = size
    rgb = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    truth = reference_towers.embeddings(model, rgb)
    got = ours(args, model, rgb, 1)
    same = all(np.array_equal(got, ours(args, model, rgb, threads)) for threads in (2, 5))
    limit, factor = LIMITS[weight_type]
    mine = error(got, truth)
    good = same and mine < limit
    text = f"error {mine:.1e}, limit {limit:.0e}"
    # ggml clips in place, so its limits of one matrix also change the inputs of those beside it.
    if LIBRARY.exists() and not differ:
        theirs = error(llama(args, model, rgb), truth)
        good = good and mine <= factor * theirs and theirs < LLAMA_LIMITS.get(weight_type, 3e-3)
        text += f"; llama.cpp's {theirs:.1e}"
    print(f"  {width} x {height}: {len(truth)} embeddings, {text}"
          + ("" if same else "; THREADS CHANGE BITS") + ("" if good else "  <- FAILED"))
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="cases whose settings contain this text")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    good = True
    for i, (settings, sizes) in enumerate(CASES):
        if args.only not in settings:
            continue
        print(settings)
        model = args.work / "tower.gguf"
        command = [args.program, "make", f"path={model}", f"seed={i + 1}", f"projector={settings.split()[0]}",
                   *settings.split()[1:]]
        subprocess.run(command, check=True)
        weight_type = dict(word.split("=") for word in settings.split()[1:]).get("type", "f32")
        for j, size in enumerate(sizes):
            good = check_picture(args, model, weight_type, size, 10 * i + j,
                                 "limits=2" in settings) and good
        model.unlink()
    sys.exit(0 if good else "vision: too far from float64")


if __name__ == "__main__":
    main()
