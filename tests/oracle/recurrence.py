"""The recurrences of hybrid models in float64, token by token, from their papers.

    convolution   y_t = Σ_j taps[j] · x_{t - steps + 1 + j}, zeros before the text
    state         S = g S + k (β v)ᵀ                       Dao and Gu 2024 (Mamba-2: k = B, q = C)
                  S = g S + k (β (v - (g S)ᵀ k))ᵀ          Yang, Kautz, Hatamizadeh 2024 (gated delta)
                  y = Sᵀ q
"""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(0, x)


def convolve(x, taps):
    """Returns y [tokens, channels] for x [tokens, channels] and taps [channels, steps]."""
    steps = taps.shape[1]
    padded = np.concatenate([np.zeros((steps - 1, x.shape[1])), x])
    return sum(taps[:, j] * padded[j:j + len(x)] for j in range(steps))


def scan(q, k, v, decay, step, delta):
    """Returns y [tokens, heads, v_dim] for q, k [tokens, heads, k_dim], v, and decay, step [tokens, heads]."""
    state = np.zeros((v.shape[1], k.shape[-1], v.shape[-1]))
    y = np.empty_like(v)
    for t in range(len(v)):
        state = decay[t][:, None, None] * state
        taken = v[t]
        if delta:
            taken = taken - np.einsum("hkv,hk->hv", state, k[t])
        state = state + np.einsum("hk,hv->hkv", k[t], step[t][:, None] * taken)
        y[t] = np.einsum("hkv,hk->hv", state, q[t])
    return y


def of_groups(x, heads):
    """Returns [tokens, groups, dim] as [tokens, heads, dim]: neighbouring heads share a group."""
    return np.repeat(x, heads // x.shape[1], axis=1)
