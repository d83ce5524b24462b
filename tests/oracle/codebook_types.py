"""Dequantises the block types whose blocks hold indices of a codebook: IQ1, IQ2 and IQ3.

Written from the formats' definition, as block_types.py. The codebooks themselves are read from the
sources (src/tensor/codebook_*.cc), since they are data: the groups of values that the format has.
"""

import pathlib
import re

import numpy as np

F32, U8 = np.float32, np.uint8
SOURCES = pathlib.Path(__file__).resolve().parents[2] / "src/tensor"


def _codebook(name, bits, count):
    """Returns the codebook's digits [entries, count]."""
    text = (SOURCES / f"codebook_{name}.cc").read_text()
    entries = np.array([int(x, 16) for x in re.findall(r"0x([0-9a-f]{4})", text)], np.uint16)
    return entries[:, None] >> (bits * np.arange(count, dtype=np.uint16)) & (2**bits - 1)


_LEVELS = np.array([8, 25, 43], F32)
IQ2_XXS = _LEVELS[_codebook("iq2_xxs", 2, 8)]
IQ2_XS = _LEVELS[_codebook("iq2_xs", 2, 8)]
IQ2_S = _LEVELS[_codebook("iq2_s", 2, 8)]
IQ3_XXS = np.array([4, 12, 20, 28, 36, 44, 52, 62], F32)[_codebook("iq3_xxs", 3, 4)]
IQ3_S = 2 * _codebook("iq3_s", 3, 4).astype(F32) + 1
IQ1 = _codebook("iq1", 2, 8).astype(F32) - 1


def _fields(data, *fields):
    return np.frombuffer(data, np.dtype([(name, kind, (count,)) for name, kind, count in fields]))


def _scaled(d, scales, values):
    """Returns d [n] × scales [n, k] × values [n, …], for 256 / k values with each scale."""
    factors = d.reshape(-1, 1).astype(F32) * scales.astype(F32)
    return (factors[:, :, None] * values.reshape(*factors.shape, -1)).reshape(len(factors), 256)


def _halves(packed):
    """Returns the lower and upper half of each byte in turn."""
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


def _signs(bits):
    """Returns 1 or -1 for the eight bits of each value."""
    return 1 - 2 * (bits[..., None] >> np.arange(8, dtype=bits.dtype) & 1).astype(F32)


def _signs_of_seven(bits):
    """The eighth sign makes the number of minuses even."""
    signs = _signs(bits & 127)
    signs[..., 7] = np.prod(signs[..., :7], axis=-1)
    return signs


def _words(rest):
    """Splits u32 [n, 8] to scales s [n, 8] and four times seven bits [n, 8, 4]."""
    return (rest >> 28).astype(F32), rest[:, :, None] >> (7 * np.arange(4, dtype=np.uint32))


def iq2_xxs(data):
    b = _fields(data, ("d", "<f2", 1), ("q", U8, 64))
    index = b["q"].reshape(-1, 8, 8)[:, :, :4]
    rest = np.ascontiguousarray(b["q"]).view("<u4").reshape(-1, 8, 2)[:, :, 1]
    s, signs = _words(rest)
    return _scaled(b["d"], (0.5 + s) / 4, IQ2_XXS[index] * _signs_of_seven(signs))


def iq2_xs(data):
    b = _fields(data, ("d", "<f2", 1), ("q", "<u2", 32), ("s", U8, 8))
    values = IQ2_XS[b["q"] & 511] * _signs_of_seven(b["q"] >> 9)
    return _scaled(b["d"], (F32(0.5) + _halves(b["s"])) / 4, values)


def iq2_s(data):
    b = _fields(data, ("d", "<f2", 1), ("q", U8, 32), ("signs", U8, 32), ("h", U8, 8), ("s", U8, 8))
    high = (b["h"][:, :, None] >> np.array([0, 2, 4, 6], U8) & 3).reshape(-1, 32)
    values = IQ2_S[b["q"] + 256 * high.astype(np.uint16)] * _signs(b["signs"])
    return _scaled(b["d"], (F32(0.5) + _halves(b["s"])) / 4, values)


def iq3_xxs(data):
    b = _fields(data, ("d", "<f2", 1), ("q", U8, 64), ("rest", "<u4", 8))
    s, signs = _words(b["rest"])
    values = IQ3_XXS[b["q"]].reshape(-1, 8, 4, 8) * _signs_of_seven(signs)
    return _scaled(b["d"], (0.5 + s) / 2, values)


def iq3_s(data):
    b = _fields(data, ("d", "<f2", 1), ("q", U8, 64), ("h", U8, 8), ("signs", U8, 32), ("s", U8, 4))
    high = (b["h"][:, :, None] >> np.arange(8, dtype=U8) & 1).reshape(-1, 64)
    values = IQ3_S[b["q"] + 256 * high.astype(np.uint16)].reshape(-1, 32, 8) * _signs(b["signs"])
    return _scaled(b["d"], 1 + 2 * _halves(b["s"]).astype(F32), values)


def iq1_s(data):
    b = _fields(data, ("d", "<f2", 1), ("q", U8, 32), ("h", "<u2", 8))
    high = (b["h"][:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 32)
    shift = np.where(b["h"] & 0x8000, F32(-0.125), F32(0.125))
    values = IQ1[b["q"] + 256 * high].reshape(-1, 8, 32) + shift[:, :, None]
    return _scaled(b["d"], 2 * (b["h"] >> 12 & 7).astype(F32) + 1, values)


def iq1_m(data):
    b = _fields(data, ("q", U8, 32), ("h", U8, 16), ("s", "<u2", 4))
    d = np.bitwise_or.reduce((b["s"] >> 12) << (4 * np.arange(4, dtype=np.uint16)), axis=1)
    scales = (b["s"][:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 16)
    rest = _halves(b["h"])
    shift = np.where(rest & 8, F32(-0.125), F32(0.125))
    values = IQ1[b["q"] + 256 * (rest & 7).astype(np.uint16)] + shift[:, :, None]
    return _scaled(d.view("<f2"), 2 * scales.astype(F32) + 1, values)


# ggml's number -> name, values and bytes of a block, and the function above.
CODEBOOK_TYPES = {
    16: ("iq2_xxs", 256, 66, iq2_xxs), 17: ("iq2_xs", 256, 74, iq2_xs),
    18: ("iq3_xxs", 256, 98, iq3_xxs), 19: ("iq1_s", 256, 50, iq1_s),
    21: ("iq3_s", 256, 110, iq3_s), 22: ("iq2_s", 256, 82, iq2_s), 29: ("iq1_m", 256, 56, iq1_m),
}
