"""Dequantises block-quantised weights to float32, for the checks.

Written from the format's definition (ggml's block_* structs and dequantize_row_*) and independently of
the project's own code, so that no mistake is in both. Every product is exact in float32; a difference
or sum is rounded once.
"""

import numpy as np

import codebook_types

F32, U8 = np.float32, np.uint8


def _fields(data, *fields):
    """Returns the blocks' fields, given as (name, dtype, count); `data` is whole blocks."""
    block = np.dtype([(name, kind, (count,)) for name, kind, count in fields])
    return np.frombuffer(data, block)


def _half(blocks, name):
    return blocks[name].astype(F32)  # [blocks, 1]


def _nibbles(packed):
    """Unpacks [n, 16] bytes to [n, 32] nibbles: lower halves first, then upper ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(high):
    """Unpacks [n, 1] little-endian u32 to [n, 32] values of 0 or 16."""
    return ((high >> np.arange(32, dtype=np.uint32)) & 1).astype(U8) << 4


def q4_0(data):
    b = _fields(data, ("d", "<f2", 1), ("q", U8, 16))
    return _half(b, "d") * (_nibbles(b["q"]).astype(F32) - 8)


def q4_1(data):
    b = _fields(data, ("d", "<f2", 1), ("m", "<f2", 1), ("q", U8, 16))
    return _half(b, "d") * _nibbles(b["q"]).astype(F32) + _half(b, "m")


def q5_0(data):
    b = _fields(data, ("d", "<f2", 1), ("h", "<u4", 1), ("q", U8, 16))
    q = _nibbles(b["q"]) | _fifth_bits(b["h"])
    return _half(b, "d") * (q.astype(F32) - 16)


def q5_1(data):
    b = _fields(data, ("d", "<f2", 1), ("m", "<f2", 1), ("h", "<u4", 1), ("q", U8, 16))
    q = _nibbles(b["q"]) | _fifth_bits(b["h"])
    return _half(b, "d") * q.astype(F32) + _half(b, "m")


def q8_0(data):
    b = _fields(data, ("d", "<f2", 1), ("q", "i1", 32))
    return _half(b, "d") * b["q"].astype(F32)


def _scales_of_k(packed):
    """Unpacks [n, 12] bytes to eight scales and eight minima of 6 bits."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6) << 4], axis=1)
    return scales, minima


def _super_blocks(b, q):
    """Returns the values of Q4_K and Q5_K from quants [n, 8, 32]."""
    scales, minima = _scales_of_k(b["scales"])
    d = _half(b, "d") * scales.astype(F32)
    m = _half(b, "dmin") * minima.astype(F32)
    return (d[:, :, None] * q.astype(F32) - m[:, :, None]).reshape(len(q), 256)


def _nibbles_of_k(packed):
    """Unpacks [n, 128] bytes to [n, 8, 32]: each 32 bytes hold two sub-blocks."""
    four = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([four & 15, four >> 4], axis=2).reshape(-1, 8, 32)


def q4_k(data):
    b = _fields(data, ("d", "<f2", 1), ("dmin", "<f2", 1), ("scales", U8, 12), ("q", U8, 128))
    return _super_blocks(b, _nibbles_of_k(b["q"]))


def q5_k(data):
    b = _fields(data, ("d", "<f2", 1), ("dmin", "<f2", 1), ("scales", U8, 12), ("h", U8, 32),
                ("q", U8, 128))
    high = (b["h"][:, None, :] >> np.arange(8, dtype=U8)[None, :, None]) & 1
    return _super_blocks(b, _nibbles_of_k(b["q"]) | high << 4)


def q6_k(data):
    b = _fields(data, ("low", U8, 128), ("high", U8, 64), ("scales", "i1", 16), ("d", "<f2", 1))
    low = b["low"].reshape(-1, 2, 1, 2, 32)  # half, -, first or second 32, byte
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], U8)[None, None, :, None]
    high = (b["high"].reshape(-1, 2, 1, 32) >> shifts) & 3
    q = (low | high << 4).astype(F32) - 32
    scales = _half(b, "d") * b["scales"].astype(F32)
    return (scales[:, :, None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


_FLOATS_OF_FOUR_BITS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], F32)


def mxfp4(data):
    b = _fields(data, ("e", U8, 1), ("q", U8, 16))
    # Powers are halved, so that each is a float; values are doubled, so that none is rounded.
    half_power = np.ldexp(F32(0.5), b["e"].astype(np.int32) - 127)
    return half_power * (2 * _FLOATS_OF_FOUR_BITS[_nibbles(b["q"])])


def _coded(d, scales, values):
    """Returns d [n, 1] × scales [n, k] × values [n, m], for m / k values with each scale."""
    factors = d * scales.astype(F32)
    return (factors[:, :, None] * values.astype(F32).reshape(len(values), factors.shape[1], -1)
            ).reshape(len(values), -1)


def _pairs(packed):
    """Unpacks [n, 64] bytes to [n, 256] values of two bits: each 32 bytes hold four runs of 32."""
    shifts = np.array([0, 2, 4, 6], U8)[None, None, :, None]
    return ((packed.reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, 256)


def q2_k(data):
    b = _fields(data, ("scales", U8, 16), ("q", U8, 64), ("d", "<f2", 1), ("dmin", "<f2", 1))
    minima = _half(b, "dmin") * (b["scales"] >> 4).astype(F32)
    return _coded(_half(b, "d"), b["scales"] & 15, _pairs(b["q"])) - np.repeat(minima, 16, axis=1)


def q3_k(data):
    b = _fields(data, ("h", U8, 32), ("q", U8, 64), ("scales", U8, 12), ("d", "<f2", 1))
    low = np.concatenate([b["scales"][:, :8] & 15, b["scales"][:, :8] >> 4], axis=1)
    high = (b["scales"][:, None, 8:] >> np.array([0, 2, 4, 6], U8)[None, :, None]) & 3
    scales = (low | high.reshape(-1, 16) << 4).astype(F32) - 32
    third = (b["h"][:, None, :] >> np.arange(8, dtype=U8)[None, :, None]) & 1
    return _coded(_half(b, "d"), scales, _pairs(b["q"]).astype(F32)
                  + 4 * third.reshape(-1, 256).astype(F32) - 4)


_NONLINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], F32)


def iq4_nl(data):
    b = _fields(data, ("d", "<f2", 1), ("q", U8, 16))
    return _half(b, "d") * _NONLINEAR[_nibbles(b["q"])]


def iq4_xs(data):
    b = _fields(data, ("d", "<f2", 1), ("h", "<u2", 1), ("low", U8, 4), ("q", U8, 128))
    low = np.stack([b["low"] & 15, b["low"] >> 4], axis=2).reshape(-1, 8)
    high = ((b["h"] >> (2 * np.arange(8, dtype=np.uint16))) & 3).astype(U8)
    q = _nibbles(b["q"].reshape(-1, 16)).reshape(-1, 256)
    return _coded(_half(b, "d"), (low | high << 4).astype(F32) - 32, _NONLINEAR[q])


def nvfp4(data):
    b = _fields(data, ("e", U8, 4), ("q", U8, 32))
    exponent, mantissa = (b["e"] >> 3 & 15).astype(np.int32), (b["e"] & 7).astype(F32)
    scale = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(1 + mantissa / 8, exponent - 7))
    scale = np.where(b["e"] == 0x7f, F32(0), scale).astype(F32)
    eight = b["q"].reshape(-1, 4, 8)
    q = np.concatenate([eight & 15, eight >> 4], axis=2).reshape(-1, 64)
    return _coded(F32(0.5), scale, 2 * _FLOATS_OF_FOUR_BITS[q] + F32(0))


def tq1_0(data):
    b = _fields(data, ("a", U8, 32), ("b", U8, 16), ("c", U8, 4), ("d", "<f2", 1))

    def digits(packed, count):
        powers = np.array([3**n for n in range(count)], U8)[None, :, None]
        rest = packed[:, None, :] * powers  # modulo 256
        return (rest.astype(np.uint16) * 3 >> 8).reshape(len(packed), -1)

    q = np.concatenate([digits(b["a"], 5), digits(b["b"], 5), digits(b["c"], 4)], axis=1)
    return _half(b, "d") * (q.astype(F32) - 1)


def tq2_0(data):
    b = _fields(data, ("q", U8, 64), ("d", "<f2", 1))
    return _half(b, "d") * (_pairs(b["q"]).astype(F32) - 1)


# ggml's number -> name, values and bytes of a block, and the function above.
BLOCK_TYPES = {
    2: ("q4_0", 32, 18, q4_0), 3: ("q4_1", 32, 20, q4_1), 6: ("q5_0", 32, 22, q5_0),
    7: ("q5_1", 32, 24, q5_1), 8: ("q8_0", 32, 34, q8_0), 12: ("q4_k", 256, 144, q4_k),
    13: ("q5_k", 256, 176, q5_k), 14: ("q6_k", 256, 210, q6_k), 39: ("mxfp4", 32, 17, mxfp4),
    10: ("q2_k", 256, 84, q2_k), 11: ("q3_k", 256, 110, q3_k), 20: ("iq4_nl", 32, 18, iq4_nl),
    23: ("iq4_xs", 256, 136, iq4_xs), 34: ("tq1_0", 256, 54, tq1_0), 35: ("tq2_0", 256, 66, tq2_0),
    40: ("nvfp4", 64, 36, nvfp4),
}
BLOCK_TYPES.update(codebook_types.CODEBOOK_TYPES)
