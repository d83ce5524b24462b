"""Writes and reads the part of GGUF version 3 that the shipped models need.

Layout: magic, version, counts, metadata pairs, tensor infos, padding, tensor
data; each tensor starts at a multiple of 32 bytes. All little-endian. The
format is described in ggml's docs/gguf.md.
"""

import dataclasses
import math
import struct

import numpy

import q8_0

MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32

# Metadata value types.
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
_PLAIN = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}

# Tensor types.
TENSOR_F32, TENSOR_Q8_0, TENSOR_I64 = 0, 8, 27


@dataclasses.dataclass(frozen=True)
class Value:
  """A metadata value with its GGUF type; arrays name their elements' type."""
  type: int
  value: object
  of: int = None


@dataclasses.dataclass(frozen=True)
class Tensor:
  """A tensor with its bytes as they are in a file; the axis that varies fastest is the last one."""
  type: int
  shape: tuple
  data: bytes

  def rows(self, indices):
    """Returns these rows of a matrix."""
    size = len(self.data) // self.shape[0]
    return Tensor(self.type, (len(indices), *self.shape[1:]),
                  b"".join(self.data[i * size:(i + 1) * size] for i in indices))

  def values(self):
    if self.type == TENSOR_F32:
      return numpy.frombuffer(self.data, "<f4").reshape(self.shape).copy()
    if self.type == TENSOR_I64:
      return numpy.frombuffer(self.data, "<i8").reshape(self.shape).copy()
    return q8_0.dequantize(self.data, self.shape)


def u32(value):
  return Value(U32, value)


def f32(value):
  return Value(F32, value)


def boolean(value):
  return Value(BOOL, value)


def string(value):
  return Value(STRING, value)


def array(of, values):
  return Value(ARRAY, list(values), of)


def _pack(kind, value):
  if kind == STRING:
    data = value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data
  return struct.pack(_PLAIN[kind], value)


def _pack_value(value):
  out = struct.pack("<I", value.type)
  if value.type != ARRAY:
    return out + _pack(value.type, value.value)
  out += struct.pack("<IQ", value.of, len(value.value))
  return out + b"".join(_pack(value.of, v) for v in value.value)


def integers(values):
  """Returns a tensor of I64 values, which no array becomes by itself."""
  return Tensor(TENSOR_I64, (len(values),), numpy.asarray(values, "<i8").tobytes())


def _tensor(values):
  if isinstance(values, Tensor):
    return values
  if values.ndim == 2 and values.shape[1] % q8_0.BLOCK == 0:
    return Tensor(TENSOR_Q8_0, values.shape, q8_0.quantize(values))
  return Tensor(TENSOR_F32, values.shape, values.astype("<f4").tobytes())


def write(path, metadata, tensors):
  """metadata: name -> Value. tensors: name -> Tensor or f32 array; arrays of two axes
  whose rows are whole blocks become Q8_0, the others stay F32."""
  head = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
  for name, value in metadata.items():
    head += [_pack(STRING, name), _pack_value(value)]
  body, offset = [], 0
  for name, values in tensors.items():
    tensor = _tensor(values)
    head += [_pack(STRING, name), struct.pack("<I", len(tensor.shape))]
    head += [struct.pack("<Q", n) for n in reversed(tensor.shape)]
    head += [struct.pack("<IQ", tensor.type, offset)]
    data = tensor.data + bytes(-len(tensor.data) % ALIGNMENT)
    body.append(data)
    offset += len(data)
  start = b"".join(head)
  with open(path, "wb") as out:
    out.write(start + bytes(-len(start) % ALIGNMENT))
    out.writelines(body)


class _Cursor:

  def __init__(self, data):
    self._data = data
    self.at = 0

  def plain(self, form):
    value, = struct.unpack_from(form, self._data, self.at)
    self.at += struct.calcsize(form)
    return value

  def value(self, kind):
    """Returns a metadata value, with its type."""
    if kind != ARRAY:
      return Value(kind, self._one(kind))
    of, count = self.plain("<I"), self.plain("<Q")
    return Value(ARRAY, [self._one(of) for _ in range(count)], of)

  def string(self):
    return self._one(STRING)

  def _one(self, kind):
    if kind != STRING:
      return self.plain(_PLAIN[kind])
    size = self.plain("<Q")
    self.at += size
    return self._data[self.at - size:self.at].decode("utf-8", "surrogatepass")


def read_as_written(path):
  """Returns metadata (name -> Value) and tensors (name -> Tensor)."""
  with open(path, "rb") as file:
    data = file.read()
  cursor = _Cursor(data)
  magic, version = data[:4], struct.unpack_from("<I", data, 4)[0]
  if magic != MAGIC or version != VERSION:
    raise ValueError(f"{path}: not a GGUF version {VERSION} file")
  cursor.at = 8
  tensor_count, pair_count = cursor.plain("<Q"), cursor.plain("<Q")
  metadata = {}
  for _ in range(pair_count):
    name = cursor.string()
    metadata[name] = cursor.value(cursor.plain("<I"))
  infos = []
  for _ in range(tensor_count):
    name = cursor.string()
    shape = [cursor.plain("<Q") for _ in range(cursor.plain("<I"))][::-1]
    infos.append((name, tuple(shape), cursor.plain("<I"), cursor.plain("<Q")))
  base = cursor.at + -cursor.at % ALIGNMENT
  return metadata, {name: _read_tensor(data, base + offset, shape, kind)
                    for name, shape, kind, offset in infos}


def read(path):
  """Returns metadata (name -> plain value) and tensors (name -> array)."""
  metadata, tensors = read_as_written(path)
  return ({name: value.value for name, value in metadata.items()},
          {name: tensor.values() for name, tensor in tensors.items()})


def _read_tensor(data, start, shape, kind):
  block, block_bytes = {TENSOR_F32: (1, 4), TENSOR_I64: (1, 8),
                        TENSOR_Q8_0: (q8_0.BLOCK, q8_0.BLOCK_BYTES)}.get(kind, (0, 0))
  if not block:
    raise ValueError(f"tensor type {kind} is not supported")
  size = math.prod(shape) // block * block_bytes
  return Tensor(kind, shape, data[start:start + size])
