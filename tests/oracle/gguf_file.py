"""Reads GGUF model files (version 2 and 3) for the float64 reference.

Written from the format's published description and independently of the project's own reader, so that
no mistake is in both. Returns weights as float64.
Source: docs/gguf.md of the ggml project.
"""

import dataclasses
import struct

import numpy as np

from block_types import BLOCK_TYPES

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?",
            10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclasses.dataclass
class TensorInfo:
    dims: tuple  # fastest dimension first, as in the file
    type: int
    offset: int  # from the start of the data section


class GgufFile:
    """The metadata and tensors of one file; REQUIRES that the file is trusted."""

    def __init__(self, path):
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self._at = 0
        magic, version, tensor_count, value_count = self._unpack("<4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{path}: not a GGUF file of version 2 or 3")
        self.metadata = {}
        for _ in range(value_count):
            key = self._string()
            self.metadata[key] = self._value(self._unpack("<I")[0])
        self.infos_start = self._at
        self.tensors = {}
        for _ in range(tensor_count):
            name = self._string()
            rank = self._unpack("<I")[0]
            dims = self._unpack(f"<{rank}Q")
            self.tensors[name] = TensorInfo(dims, *self._unpack("<IQ"))
        alignment = self.metadata.get("general.alignment", 32)
        self._data = -(-self._at // alignment) * alignment

    def tensor(self, name):
        """Returns a float64 array, slowest dimension first: a weight matrix is [outputs, inputs]."""
        info = self.tensors[name]
        count = int(np.prod(info.dims))
        return self._dequantize(info, count).reshape(info.dims[::-1])

    def _dequantize(self, info, count):
        start = self._data + info.offset
        if info.type == 0:
            return self._view(start, "<f4", count).astype(np.float64)
        if info.type == 1:
            return self._view(start, "<f2", count).astype(np.float64)
        if info.type == 30:  # BF16: the upper half of an F32
            upper = self._view(start, "<u2", count).astype(np.uint32)
            return (upper << 16).view(np.float32).astype(np.float64)
        if info.type in BLOCK_TYPES:
            _, size, block_bytes, dequantize = BLOCK_TYPES[info.type]
            return dequantize(self._view(start, "u1", count // size * block_bytes)).astype(
                np.float64)
        raise ValueError(f"tensor type is {info.type}; the reference does not support it")

    def _view(self, start, dtype, count):
        size = np.dtype(dtype).itemsize * count
        return np.frombuffer(self._bytes[start:start + size].tobytes(), dtype)

    def _unpack(self, layout):
        size = struct.calcsize(layout)
        values = struct.unpack(layout, self._bytes[self._at:self._at + size].tobytes())
        self._at += size
        return values

    def _string(self):
        length = self._unpack("<Q")[0]
        return self._unpack(f"<{length}s")[0].decode("utf-8", "surrogateescape")

    def _value(self, kind):
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._unpack("<" + _SCALARS[kind])[0]
        item, count = self._unpack("<IQ")
        if item in (_STRING, _ARRAY):
            return [self._value(item) for _ in range(count)]
        return list(self._unpack(f"<{count}{_SCALARS[item]}"))
