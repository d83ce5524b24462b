"""Writes LoRA adapters for tests: GGUF files in llama.cpp's form, and PEFT's directories."""

import json
import pathlib
import struct

import numpy as np

_STRING, _FLOAT32 = 8, 6
_TYPES = {"f32": (0, "<f4"), "f16": (1, "<f2")}
ALIGNMENT = 32


def _text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def write_gguf(path, architecture, tensors, alpha, value_type="f32"):
    """`tensors`: name → array, slowest dimension first."""
    number, dtype = _TYPES[value_type]
    keys = [("general.type", "adapter"), ("general.architecture", architecture),
            ("adapter.type", "lora"), ("adapter.lora.alpha", float(alpha))]
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))
    for key, value in keys:
        header += _text(key)
        if isinstance(value, str):
            header += struct.pack("<I", _STRING) + _text(value)
        else:
            header += struct.pack("<If", _FLOAT32, value)
    data = b""
    for name, array in tensors.items():
        dims = array.shape[::-1]
        header += _text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        header += struct.pack("<IQ", number, len(data))
        data += array.astype(dtype).tobytes()
        data += b"\0" * (-len(data) % ALIGNMENT)
    header += b"\0" * (-len(header) % ALIGNMENT)
    pathlib.Path(path).write_bytes(header + data)


def random_pairs(shapes, rank, seed, largest=0.05, value_type="f32"):
    """Returns NAME.lora_a and NAME.lora_b for each name → shape of the base, slowest dimension first.

    The embedding's A has a row for each token. Values are those that the type holds.
    """
    rng = np.random.default_rng(seed)
    dtype = _TYPES[value_type][1]
    pairs = {}
    for name, shape in shapes.items():
        *stack, outputs, inputs = shape
        a, b = (*stack, rank, inputs), (*stack, outputs, rank)
        if name == "token_embd.weight":
            a, b = (outputs, rank), (inputs, rank)
        for suffix, dims in ((".lora_a", a), (".lora_b", b)):
            values = rng.uniform(-largest, largest, dims).astype(dtype)
            pairs[name + suffix] = values.astype(np.float64)
    return pairs


def merged(name, weight, pairs, factor):
    """Returns a base weight with its pair in it, in float64."""
    if name + ".lora_a" not in pairs:
        return weight
    a, b = pairs[name + ".lora_a"], pairs[name + ".lora_b"]
    if name == "token_embd.weight":
        return weight + factor * (a @ b.T)
    return weight + factor * (b @ a)


def write_peft(folder, modules, rank, alpha, **config):
    """`modules`: name of a module → (A [rank, inputs], B [outputs, rank])."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    header, data = {}, b""
    for module, halves in modules.items():
        for half, array in zip("AB", halves, strict=True):
            part = np.ascontiguousarray(array, dtype="<f4").tobytes()
            header[f"base_model.model.{module}.lora_{half}.weight"] = {
                "dtype": "F32", "shape": list(array.shape),
                "data_offsets": [len(data), len(data) + len(part)]}
            data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
