"""Random-weight models of the shapes that the checks across programs use.

The shapes are small enough for float64 and chosen for what goes wrong: grouped queries, head
counts that no power of two divides, head sizes other than 64, heads wider together than the
model, an odd vocabulary, tied and untied output.
"""

import dataclasses
import subprocess

import numpy as np

TYPES = ["f32", "f16", "bf16", "q8_0"]


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool


SHAPES = [
    Shape("grouped-64", 2, 256, 4, 2, 64, 512, 1024, tied=False),
    Shape("nine-of-three-64", 2, 288, 9, 3, 64, 480, 1501, tied=True),
    Shape("plain-80", 3, 320, 4, 4, 80, 640, 1200, tied=False),
    Shape("five-of-one-32", 2, 160, 5, 1, 32, 416, 1111, tied=True),
]


class Failure(Exception):
    """A check that did not hold, or a program that did not run; the text says which."""


def run(command, **options):
    """The program's standard output; Failure with its standard error when it fails."""
    command = [str(part) for part in command]
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        raise Failure(f"`{' '.join(command)}` gave status {result.returncode}:\n"
                      f"{result.stderr.strip()}")
    return result.stdout


def make_model(tool, shape, weight_type, seed, path):
    run([tool, "--type", weight_type, "--layers", shape.layers, "--width", shape.width,
         "--heads", shape.heads, "--kv-heads", shape.kv_heads, "--head-dim", shape.head_dim,
         "--ffn", shape.ffn, "--vocab", shape.vocab, "--tied" if shape.tied else "--untied",
         "--seed", seed, path])


def random_tokens(shape, count, seed):
    return np.random.default_rng(seed).integers(0, shape.vocab, count).tolist()
