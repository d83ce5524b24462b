"""gemma2 and gemma3 in float64.

    h   = √hidden_size · embed[token]
    h  += rms(Wo · attention(rope(q), rope(k), v)) * post_attention_norm      q, k, v = W n
    h  += rms(Wdown · (gelu(Wgate m) * Wup m)) * post_ffw_norm                n, m normed as usual
    logits = cap(Wout · (rms(h) * output_norm))

    gemma2   scores capped, cap(x) = c · tanh(x / c); the first of every two layers has a window
    gemma3   q and k of each head normed before rotation; the first five of every six layers have a
             window, and rotate with base 1e4 (or rope.freq_base_swa) without scaling

gelu is the tanh form. The 27B models scale queries by 1/√(hidden_size / heads), the others by
1/√(head size). Only the number of layers, 46 (gemma2) or 62 (gemma3), identifies the 27B files.

Sources: Gemma Team 2024, 2025; Hugging Face's modeling_gemma2.py and modeling_gemma3.py. Norms'
weights contain the 1 that the published form adds.
"""

import numpy as np

import reference
import rope

_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def cap(x, limit):
    return limit * np.tanh(x / limit) if limit else x


class Reference(reference.Decoder):
    def __init__(self, path):
        super().__init__(path)
        self.hidden_size = self._key("embedding_length")
        second = self._prefix == "gemma2"
        self.window = self._key("attention.sliding_window", 4096 if second else 0)
        self.score_cap = self._key("attn_logit_softcapping", 50.0) if second else 0.0
        self.logit_cap = self._key("final_logit_softcapping", 30.0 if second else 0.0)
        pattern = self._key("attention.sliding_window_pattern", 2 if second else 6)
        self.windowed = (pattern if isinstance(pattern, list) else
                         [not pattern or i % pattern < pattern - 1 for i in range(self.layers)])
        per_head = self.hidden_size // self.heads
        large = self.layers == _LAYERS_OF_27B[self._prefix]
        self.scale = 1 / np.sqrt(per_head if large else self.head_dim)

    def _embed(self, tokens):
        return np.sqrt(self.hidden_size) * super()._embed(tokens)

    def _output(self, h):
        return cap(super()._output(h), self.logit_cap)

    def _seen(self, layer, count):
        return reference.seen_keys(count, self.window if self.windowed[layer] else 0)

    def _rotation(self, layer):
        if self._prefix == "gemma2" or not (self.window and self.windowed[layer]):
            return super()._rotation(layer)
        return rope.plain(self._key("rope.freq_base_swa", 10000.0), self.head_dim), 1.0

    def _layer(self, h, layer):
        block = f"blk.{layer}."
        y = self._attention(block, self._norm(h, block + "attn_norm"), layer)
        h = h + self._norm(y, block + "post_attention_norm")
        y = self._feed_forward(block, self._norm(h, block + "ffn_norm"))
        return h + self._norm(y, block + "post_ffw_norm")

    def _attention(self, block, x, layer):
        q = self._rotated(block + "attn_q", x, self.heads, layer)
        k = self._rotated(block + "attn_k", x, self.kv_heads, layer)
        v = self._project(block + "attn_v", x).reshape(len(x), self.kv_heads, -1)
        out = reference.attend(q, k, v, self._seen(layer, len(x)), self.scale, self.score_cap)
        return self._project(block + "attn_output", out.reshape(len(x), -1))

    def _feed_forward(self, block, x):
        gate, up = self._project(block + "ffn_gate", x), self._project(block + "ffn_up", x)
        return self._project(block + "ffn_down", gelu(gate) * up)
