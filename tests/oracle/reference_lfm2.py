"""lfm2 and lfm2moe in float64: short convolutions between two gates, and attention in some layers.

    b, c, x = Win n          h += Wout (c · conv(b · x))       layers with 0 KV heads
    h += attention           with norms of each head's q and k, halves rotated, in the others; within a
                             window, if an lfm2 file has one

    lfm2moe: h += Σ p_e expert_e(m), p = sigmoid(Wrouter m) over the experts with the largest p + bias,
    divided by their sum; dense parts in the first layers

Source: Liquid AI, "LFM2 technical report" (2025), and transformers' modeling_lfm2.
"""

import numpy as np

import recurrence
import reference


class Reference(reference.Decoder):
    OUTPUT_NORM = "token_embd_norm"

    def _seen(self, layer, count):
        return reference.seen_keys(count, self._key("attention.sliding_window", 0))

    def _attention(self, block, x, layer):
        self.kv_heads = self._key("attention.head_count_kv")[layer]
        if self.kv_heads > 0:
            return super()._attention(block, x, layer)
        b, c, x = np.split(self._project(block + "shortconv.in_proj", x), 3, axis=-1)
        y = c * recurrence.convolve(b * x, self._weights[block + "shortconv.conv.weight"])
        return self._project(block + "shortconv.out_proj", y)

    def _experts(self, block, x):
        p = recurrence.sigmoid(self._project(block + "ffn_gate_inp", x))
        worth = p + self._weights[block + "exp_probs_b.bias"]
        chosen = np.argsort(-worth, axis=-1, kind="stable")[:, :self.experts_used]
        share = np.take_along_axis(p, chosen, axis=-1)
        share = share / share.sum(axis=-1, keepdims=True)
        gate, up, down = (self._weights[f"{block}ffn_{name}_exps.weight"]
                          for name in ("gate", "up", "down"))
        out = np.zeros_like(x)
        for expert in range(p.shape[-1]):
            token, place = np.nonzero(chosen == expert)
            m = x[token]
            y = (reference.silu(m @ gate[expert].T) * (m @ up[expert].T)) @ down[expert].T
            out[token] += share[token, place][:, None] * y
        return out
