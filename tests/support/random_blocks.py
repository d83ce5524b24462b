"""Writes the matrices of a model of f32 weights anew in types that this project reads and does not write.

Blocks are random bits in every field but the outermost scale, which gives each matrix the deviation that it
had. A matrix of NVFP4 has random scales of its blocks of 16 and a factor of its own, NAME.scale, as published
files have them; NAME.input_scale is there as well and has no effect.

ternary  tq2_0 leaves out the fourth value of two bits, which no quantiser writes.
"""

import pathlib
import struct
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))

from block_types import BLOCK_TYPES  # noqa: E402
from gguf_file import GgufFile  # noqa: E402

# Name: where the outermost scale of f16 is in a block, from its end if negative.
SCALES = {"iq3_s": 0, "iq3_xxs": 0, "iq2_s": 0, "iq2_xs": 0, "iq2_xxs": 0, "iq1_s": 0, "iq1_m": None,
          "tq1_0": -2, "tq2_0": -2, "nvfp4": None}
NUMBERS = {name: number for number, (name, *_) in BLOCK_TYPES.items()}
ALIGNMENT = 32
KEPT = ("norm", "ffn_gate_inp", "conv", "rope", "altup", "per_layer_model_proj")


def _with_scale(name, blocks, scale):
    """Sets the outermost scale of all blocks [n, bytes]."""
    bits = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    if name == "iq1_m":  # four bits of it are in the upper half of each of the last four words
        whole = int(np.float16(scale).view(np.uint16))
        for word in range(4):
            byte = blocks.shape[1] - 8 + 2 * word + 1
            blocks[:, byte] = (blocks[:, byte] & 15) | (whole >> (4 * word) & 15) << 4
    elif name != "nvfp4":
        at = SCALES[name] % blocks.shape[1]
        blocks[:, at:at + 2] = bits
    return blocks


def random_blocks(name, count, deviation, random):
    """Returns the bytes of `count` blocks, and the factor that gives their values this deviation."""
    _, size, block_bytes, dequantize = BLOCK_TYPES[NUMBERS[name]]
    blocks = random.integers(0, 256, (count, block_bytes), np.uint8)
    if name == "tq2_0":
        digits = random.integers(0, 3, (count, 64, 4), np.uint8)
        blocks[:, :64] = (digits << np.array([0, 2, 4, 6], np.uint8)).sum(axis=-1, dtype=np.uint8)
    if name == "nvfp4":
        blocks[:, :4] = random.integers(0x28, 0x48, (count, 4), np.uint8)
    sample = _with_scale(name, blocks[:4096].copy(), 1.0)
    factor = deviation / float(np.std(dequantize(sample.reshape(-1))))
    return _with_scale(name, blocks, factor).tobytes(), factor


def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


class _Writer:
    """The tensors of the new file, behind the old file's metadata."""

    def __init__(self):
        self.infos, self.data = [], []
        self.at = 0

    def add(self, name, dims, number, data):
        self.infos.append(_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number,
                                                      self.at))
        self.data.append(data + bytes(-len(data) % ALIGNMENT))
        self.at += len(self.data[-1])


def convert(path, name, seed):
    """Replaces the file by one whose matrices have this type, where their rows are whole blocks."""
    file = GgufFile(path)
    random = np.random.default_rng(seed)
    _, size, _, _ = BLOCK_TYPES[NUMBERS[name]]
    writer = _Writer()
    for tensor, info in file.tensors.items():
        values = file.tensor(tensor)
        # A factor of the embedding would apply to rows as well; no file has one.
        is_table = tensor in ("token_embd.weight", "per_layer_token_embd.weight")
        is_matrix = len(info.dims) > 1 and tensor.endswith(".weight") and info.dims[0] % size == 0
        if not is_matrix or any(part in tensor for part in KEPT) or (is_table and name == "nvfp4"):
            writer.add(tensor, info.dims, 0, values.astype("<f4").tobytes())
            continue
        data, factor = random_blocks(name, values.size // size, float(np.std(values)), random)
        writer.add(tensor, info.dims, NUMBERS[name], data)
        if name == "nvfp4":
            stem = tensor.removesuffix(".weight")
            matrices = info.dims[2] if len(info.dims) > 2 else 1
            factors = np.full(matrices, factor, "<f4").tobytes()
            writer.add(stem + ".scale", (matrices,), 0, factors)
            writer.add(stem + ".input_scale", (matrices,), 0, factors)
    old = path.read_bytes()
    metadata = bytearray(old[:file.infos_start])
    struct.pack_into("<Q", metadata, 8, len(writer.infos))
    head = bytes(metadata) + b"".join(writer.infos)
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + b"".join(writer.data))
