"""lfm2 in float64: short convolutions between two gates, and attention in some layers.

    b, c, x = Win n          h += Wout (c · conv(b · x))       layers with 0 KV heads
    h += attention           with norms of each head's q and k, halves turned, in the others

Source: Liquid AI, "LFM2 technical report" (2025), and transformers' modeling_lfm2.
"""

import numpy as np

import recurrence
import reference


class Reference(reference.Decoder):
    OUTPUT_NORM = "token_embd_norm"

    def _attention(self, block, x, layer):
        self.kv_heads = self._key("attention.head_count_kv")[layer]
        if self.kv_heads > 0:
            return super()._attention(block, x, layer)
        b, c, x = np.split(self._project(block + "shortconv.in_proj", x), 3, axis=-1)
        y = c * recurrence.convolve(b * x, self._weights[block + "shortconv.conv.weight"])
        return self._project(block + "shortconv.out_proj", y)
