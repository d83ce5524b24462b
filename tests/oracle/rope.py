"""The rotation's frequencies and magnitude in float64, from the papers' equations.

    plain    f_i = base^(-2i / dims)                                        Su et al. 2021
    linear   f_i / factor                                                   Chen et al. 2023
    yarn     f_i / factor for pairs with less than beta_slow rotations within the original
             context, f_i for pairs with more than beta_fast, linear in i between; and
             1 + 0.1 ln(factor) on the rotated values                       Peng et al. 2023
    llama3   f_i / d_i, with the divisors d as the file's rope_freqs tensor

YaRN's ramp runs between whole pairs, the lower rounded down and the upper up, as in the authors'
code and in Hugging Face's `_compute_yarn_parameters`; `mscale_all_dim` is GGUF's
yarn_log_multiplier.
"""

import math

import numpy as np


def _pair_of_rotations(rotations, dims, base, context):
    return dims * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))


def _yarn(freq, meta, prefix, base, factor):
    dims = 2 * len(freq)
    scaling = prefix + ".rope.scaling."
    context = meta.get(scaling + "original_context_length", meta[prefix + ".context_length"])
    fast = meta.get(scaling + "yarn_beta_fast", 32.0)
    slow = meta.get(scaling + "yarn_beta_slow", 1.0)
    low = max(math.floor(_pair_of_rotations(fast, dims, base, context)), 0)
    high = min(math.ceil(_pair_of_rotations(slow, dims, base, context)), dims - 1)
    if low == high:
        high += 0.001  # avoids a division by zero
    interpolated = np.clip((np.arange(len(freq)) - low) / (high - low), 0, 1)

    def magnitude(scale):
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    all_dims = meta.get(scaling + "yarn_log_multiplier", 0.0)
    scale = magnitude(1.0) / (magnitude(all_dims) if all_dims else 1.0)
    return freq / factor * interpolated + freq * (1 - interpolated), scale


def plain(base, dims):
    """Returns frequencies [dims / 2] without any scaling."""
    return base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)


def rotation(meta, prefix, dims, divisors):
    """Returns (frequencies [dims / 2], factor on the rotated values) of the file with these keys."""
    base = meta.get(prefix + ".rope.freq_base", 10000.0)
    freq = plain(base, dims) / divisors
    kind = meta.get(prefix + ".rope.scaling.type", "none")
    factor = meta.get(prefix + ".rope.scaling.factor", 1.0)
    if kind == "linear":
        return freq / factor, 1.0
    if kind == "yarn":
        return _yarn(freq, meta, prefix, base, factor)
    if kind != "none":
        raise ValueError(f"rope scaling {kind!r} is not supported by the reference")
    return freq, 1.0


def rotate(x, freq, magnitude, neighbors, first=0):
    """Rotates x [tokens, heads, head_dim], token t by (first + t) · freq.

    The pairs are neighbours (2i, 2i + 1) in llama's files, halves (i, i + dims / 2) in others.
    """
    angles = (first + np.arange(len(x)))[:, None] * freq
    cos = magnitude * np.cos(angles)[:, None]
    sin = magnitude * np.sin(angles)[:, None]
    dims = 2 * len(freq)
    one = slice(0, dims, 2) if neighbors else slice(0, dims // 2)
    two = slice(1, dims, 2) if neighbors else slice(dims // 2, dims)
    rotated = x.copy()
    rotated[..., one] = x[..., one] * cos - x[..., two] * sin
    rotated[..., two] = x[..., one] * sin + x[..., two] * cos
    return rotated
