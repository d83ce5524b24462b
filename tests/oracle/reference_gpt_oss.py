"""gpt-oss in float64.

    h   = embed[token]
    h  += Wo · attention + b           q, k, v = W n + b; each head's softmax has an additional
                                       logit, its sink, without a value
    h  += Σ p_e · expert_e(m)          over the experts with the largest Wrouter m + b, p the
                                       softmax over these
    expert(m) = Wdown · (g · sigmoid(1.702 g) * (u + 1)) + b
    g = min(Wgate m + b, 7),  u = Wup m + b within ±7

The first of every two layers has a window. RoPE rotates halves. YaRN's ramp is between whole pairs, as
in rope.py (the published code does not round its ends; llama.cpp does).

Sources: OpenAI's gpt_oss/torch/model.py (2025) and Hugging Face's modeling_gpt_oss.py.
"""

import numpy as np

import reference

ALPHA, LIMIT = 1.702, 7.0


class Reference(reference.Decoder):
    def _seen(self, layer, count):
        period = self._key("attention.sliding_window_pattern", 2)
        windowed = not period or layer % period < period - 1
        return reference.seen_keys(count, self._key("attention.sliding_window") if windowed else 0)

    def _layer(self, h, layer):
        block = f"blk.{layer}."
        h = h + self._attention(block, self._norm(h, block + "attn_norm"), layer)
        return h + self._experts(block, self._norm(h, block + "post_attention_norm"))

    def _attention(self, block, x, layer):
        q = self._rotated(block + "attn_q", x, self.heads, layer)
        k = self._rotated(block + "attn_k", x, self.kv_heads, layer)
        v = self._project(block + "attn_v", x).reshape(len(x), self.kv_heads, -1)
        out = reference.attend(q, k, v, self._seen(layer, len(x)), 1 / np.sqrt(self.head_dim),
                               sinks=self._weights[block + "attn_sinks.weight"])
        return self._project(block + "attn_output", out.reshape(len(x), -1))

    def _experts(self, block, x):
        scores = self._project(block + "ffn_gate_inp", x)
        chosen = np.argsort(-scores, axis=-1, kind="stable")[:, :self.experts_used]
        p = np.take_along_axis(scores, chosen, axis=-1)
        p = np.exp(p - p.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        out = np.zeros_like(x)
        for expert in range(scores.shape[-1]):
            token, place = np.nonzero(chosen == expert)
            out[token] += p[token, place][:, None] * self._expert(block, expert, x[token])
        return out

    def _expert(self, block, expert, m):
        def project(name, y):
            name = f"{block}ffn_{name}_exps"
            return y @ self._weights[name + ".weight"][expert].T + self._weights[name + ".bias"][expert]

        gate = np.minimum(project("gate", m), LIMIT)
        up = np.clip(project("up", m), -LIMIT, LIMIT)
        return project("down", gate / (1 + np.exp(-ALPHA * gate)) * (up + 1))
