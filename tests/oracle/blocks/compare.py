"""Compares dequantised values with numpy's, and measures the quantisers' errors.

dequantize  random bytes, with every pattern of scale bits: the bits must be equal (any NaN equals
            any other)
quantize    normal values: the rms error, as a share of the values' own, must be within LIMITS;
            ggml's searching quantisers reach about 0.9 of these. Zeros must stay zeros
"""

import argparse
import pathlib
import subprocess
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from block_types import BLOCK_TYPES

BLOCKS = 4096
LIMITS = {"q4_0": 0.105, "q4_1": 0.085, "q5_0": 0.05, "q5_1": 0.04, "q8_0": 0.006,
          "q4_k": 0.08, "q5_k": 0.04, "q6_k": 0.025, "mxfp4": 0.13, "q2_k": 0.28, "q3_k": 0.15,
          "iq4_nl": 0.08, "iq4_xs": 0.08}


def convert(program, what, name, data):
    return subprocess.run([program, what, name], input=data, stdout=subprocess.PIPE,
                          check=True).stdout


def check_values(program, name, block_bytes, dequantize):
    data = np.random.default_rng(1).integers(0, 256, BLOCKS * block_bytes, np.uint8)
    expected = np.ascontiguousarray(dequantize(data), np.float32).reshape(-1)
    actual = np.frombuffer(convert(program, "dequantize", name, data.tobytes()), np.float32)
    if actual.shape != expected.shape:
        return [f"{name}: {actual.size} values, expected {expected.size}"]
    same = (actual.view(np.uint32) == expected.view(np.uint32)) | (
        np.isnan(actual) & np.isnan(expected))
    print(f"{name}: {expected.size} values, {np.isfinite(expected).sum()} finite, "
          f"{(~same).sum()} differ")
    return [] if same.all() else [f"{name}: value {np.flatnonzero(~same)[0]} differs"]


def check_quantizer(program, name, size, dequantize):
    values = np.random.default_rng(2).standard_normal(BLOCKS * size).astype(np.float32)
    back = dequantize(np.frombuffer(convert(program, "quantize", name, values.tobytes()), "u1"))
    error = float(np.sqrt(np.mean((back.reshape(-1) - values) ** 2)))
    zeros = np.zeros(2 * size, np.float32)
    kept = dequantize(np.frombuffer(convert(program, "quantize", name, zeros.tobytes()), "u1"))
    print(f"{name}: rms error of normal values {error:.4f}, limit {LIMITS[name]}")
    found = [] if error <= LIMITS[name] else [f"{name}: rms error {error:.4f} exceeds the limit"]
    return found + ([] if (kept == 0).all() else
                    [f"{name}: zeros become {kept.max()}; must stay zeros"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    args = parser.parse_args()
    problems = []
    with np.errstate(all="ignore"):
        for name, size, block_bytes, dequantize in BLOCK_TYPES.values():
            problems += check_values(args.program, name, block_bytes, dequantize)
            if name in LIMITS:  # the others are read only
                problems += check_quantizer(args.program, name, size, dequantize)
    if problems:
        sys.exit("blocks: " + "; ".join(problems))


if __name__ == "__main__":
    main()
