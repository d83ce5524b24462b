"""llama4's text layers in float64, from their equations.

Layers 4, 8, … (counted from 1) have no rotation and see all positions; their queries at position p are
multiplied by 1 + b · ln(1 + floor((p + 1) / n)). The others rotate neighbours, then divide each head's
query and key by its root mean square, and see the positions of the query's chunk.
In every step-th layer the feed-forward part is

    shared(m) + Σ_e expert_e(sigmoid(r_e) · m)      over the experts with the largest r = Wrouter m

Sources: Meta's llama-models (models/llama4: model.py, moe.py); Hugging Face's modeling_llama4.
"""

import numpy as np

import rope
from reference import Decoder, attend, seen_keys, silu


class Reference(Decoder):
    def __init__(self, path):
        super().__init__(path)
        self._neighbors = True
        windowless = self._meta.get("llama4.attention.sliding_window") == 0
        self._chunk = 0 if windowless else self._key("attention.chunk_size", 8192)
        self._norms_heads = self._meta.get("llama4.use_qk_norm", self._key("expert_count") != 128)

    def _turns(self, layer):
        return self._chunk == 0 or (layer + 1) % 4 != 0

    def _seen(self, layer, count):
        return seen_keys(count, chunk=self._chunk if self._turns(layer) else 0)

    def _temperatures(self, count):
        scale = self._key("attention.temperature_scale", 0.1)
        length = self._key("attention.temperature_length", 8192)
        return 1 + scale * np.log(1 + (np.arange(count) + 1) // length)

    def _head_normed(self, x):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.epsilon)

    def _attention(self, block, x, layer):
        q, k, v = (self._project(f"{block}attn_{name}", x).reshape(len(x), heads, -1)
                   for name, heads in (("q", self.heads), ("k", self.kv_heads),
                                       ("v", self.kv_heads)))
        if self._turns(layer):
            q, k = (rope.rotate(y, self._freq, self._magnitude, self._neighbors) for y in (q, k))
            if self._norms_heads:
                q, k = self._head_normed(q), self._head_normed(k)
        else:
            q = q * self._temperatures(len(x))[:, None, None]
        out = attend(q, k, v, self._seen(layer, len(x)), 1 / np.sqrt(self.head_dim))
        return self._project(block + "attn_output", out.reshape(len(x), -1))

    def _gated(self, x, block, suffix, expert=...):
        gate, up, down = (self._weights[f"{block}ffn_{name}{suffix}.weight"][expert]
                          for name in ("gate", "up", "down"))
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def _experts(self, block, x):
        scores = self._project(block + "ffn_gate_inp", x)
        chosen = np.argsort(-scores, axis=-1, kind="stable")[:, :self.experts_used]
        out = self._gated(x, block, "_shexp")
        for expert in range(scores.shape[-1]):
            token, _ = np.nonzero(chosen == expert)
            weight = 1 / (1 + np.exp(-scores[token, expert]))
            out[token] += self._gated(weight[:, None] * x[token], block, "_exps", expert)
        return out
