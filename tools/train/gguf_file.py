"""Writes and reads the part of GGUF version 3 that the shipped models need.

Layout: magic, version, counts, metadata pairs, tensor infos, padding, tensor
data; each tensor starts at a multiple of 32 bytes. All little-endian. The
format is described in ggml's docs/gguf.md.
"""

import dataclasses
import struct

import numpy

import q8_0

MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32

# Metadata value types.
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
_PLAIN = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}

# Tensor types.
TENSOR_F32, TENSOR_Q8_0 = 0, 8


@dataclasses.dataclass(frozen=True)
class Value:
  """A metadata value with its GGUF type; arrays name their elements' type."""
  type: int
  value: object
  of: int = None


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


def write(path, metadata, tensors):
  """metadata: name -> Value. tensors: name -> f32 array; those of two axes
  whose rows are whole blocks become Q8_0, the others stay F32."""
  head = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
  for name, value in metadata.items():
    head += [_pack(STRING, name), _pack_value(value)]
  body, offset = [], 0
  for name, values in tensors.items():
    is_matrix = values.ndim == 2 and values.shape[1] % q8_0.BLOCK == 0
    data = q8_0.quantize(values) if is_matrix else values.astype("<f4").tobytes()
    head += [_pack(STRING, name), struct.pack("<I", values.ndim)]
    head += [struct.pack("<Q", n) for n in reversed(values.shape)]
    head += [struct.pack("<IQ", TENSOR_Q8_0 if is_matrix else TENSOR_F32, offset)]
    data += bytes(-len(data) % ALIGNMENT)
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
    if kind == STRING:
      size = self.plain("<Q")
      self.at += size
      return self._data[self.at - size:self.at].decode("utf-8", "surrogatepass")
    if kind == ARRAY:
      of, count = self.plain("<I"), self.plain("<Q")
      return [self.value(of) for _ in range(count)]
    return self.plain(_PLAIN[kind])


def read(path):
  """Returns metadata (name -> plain value) and tensors (name -> f32 array)."""
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
    name = cursor.value(STRING)
    metadata[name] = cursor.value(cursor.plain("<I"))
  infos = []
  for _ in range(tensor_count):
    name = cursor.value(STRING)
    shape = [cursor.plain("<Q") for _ in range(cursor.plain("<I"))][::-1]
    infos.append((name, shape, cursor.plain("<I"), cursor.plain("<Q")))
  base = cursor.at + -cursor.at % ALIGNMENT
  return metadata, {name: _tensor(data, base + offset, shape, kind)
                    for name, shape, kind, offset in infos}


def _tensor(data, start, shape, kind):
  count = int(numpy.prod(shape))
  if kind == TENSOR_F32:
    return numpy.frombuffer(data, "<f4", count, start).reshape(shape).copy()
  if kind == TENSOR_Q8_0:
    size = count // q8_0.BLOCK * q8_0.BLOCK_BYTES
    return q8_0.dequantize(data[start:start + size], shape)
  raise ValueError(f"tensor type {kind} is not supported")
