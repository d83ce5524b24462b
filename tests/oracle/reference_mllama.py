"""mllama's text layers in float64, from their equations: Llama 3.2 Vision.

    llama's layers, and between them layers with cross-attention over an image's states s
    h += tanh(a) · Wo attention(rms(Wq n) * q_norm, rms(Wk s) * k_norm, Wv s)
    h += tanh(m) · ffn(rms(h))                      for tokens from the image's on; none before

Sources: Meta's llama-models (models/llama3/multimodal/model.py: CrossAttentionTransformerBlock and its
full_text_row_masked_out_mask); Hugging Face's modeling_mllama.
"""

import numpy as np

from reference import Decoder, attend


class Reference(Decoder):
    def __init__(self, path):
        super().__init__(path)
        self._neighbors = True
        self._cross = set(self._key("attention.cross_attention_layers"))

    def logits(self, tokens, states=None, at=None):
        """Returns float64 [tokens, vocab]; the image with `states` [any, hidden_size] is at position `at`."""
        self._states, self._at = states, len(tokens) if states is None else at
        return super().logits(tokens)

    def _layer(self, h, layer):
        if layer not in self._cross:
            return super()._layer(h, layer)
        if self._at >= len(h):
            return h
        return np.concatenate([h[:self._at], self._look(h[self._at:], f"blk.{layer}.")])

    def _look(self, h, block):
        name = block + "cross_attn_"
        n = self._norm(h, block + "attn_norm")
        q = self._project(name + "q_proj", n).reshape(len(h), self.heads, -1)
        k, v = (self._project(name + part, self._states).reshape(len(self._states), self.kv_heads,
                                                                  -1)
                for part in ("k_proj", "v_proj"))
        q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        seen = np.ones((len(h), len(self._states)), bool)
        out = attend(q, k, v, seen, 1 / np.sqrt(self.head_dim)).reshape(len(h), -1)
        h = h + np.tanh(self._weights[name + "attn_gate"]) * self._project(name + "o_proj", out)
        ffn = self._feed_forward(block, self._norm(h, block + "ffn_norm"))
        return h + np.tanh(self._weights[name + "mlp_gate"]) * ffn
