"""Q8_0: blocks of 32 values, an f16 scale and 32 signed bytes each.

The scale is the largest magnitude / 127; a value is its byte times the scale.
"""

import numpy

BLOCK = 32
BLOCK_BYTES = 34


def quantize(values):
  """f32 array whose last axis is a multiple of 32 -> bytes."""
  blocks = numpy.ascontiguousarray(values, numpy.float32).reshape(-1, BLOCK)
  scale = numpy.abs(blocks).max(1, keepdims=True) / numpy.float32(127)
  inverse = numpy.divide(1, scale, out=numpy.zeros_like(scale), where=scale > 0)
  scaled = blocks * inverse
  # Halves away from zero, as the reference quantiser rounds.
  rounded = numpy.copysign(numpy.floor(numpy.abs(scaled) + 0.5), scaled)
  out = numpy.empty((len(blocks), BLOCK_BYTES), numpy.uint8)
  out[:, :2] = scale.astype("<f2").view(numpy.uint8)
  out[:, 2:] = rounded.astype(numpy.int8).view(numpy.uint8)
  return out.tobytes()


def dequantize(data, shape):
  """Bytes -> f32 array of that shape."""
  raw = numpy.frombuffer(data, numpy.uint8).reshape(-1, BLOCK_BYTES)
  scale = raw[:, :2].copy().view("<f2").astype(numpy.float32)
  values = raw[:, 2:].copy().view(numpy.int8).astype(numpy.float32)
  return (values * scale).reshape(shape)
