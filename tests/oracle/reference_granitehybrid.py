"""granitehybrid in float64: Mamba-2 layers and attention, with Granite's factors.

    z, xBC, δ = Win n        x, B, C = silu(conv(xBC) + bias)        Δ = softplus(δ + bias)
    S = exp(a Δ) S + B (Δ x)ᵀ          y = Sᵀ C + d x
    h += r · Wout norm(y · silu(z))                                  normed in each group of heads
    h += r · Wo attention(scale · q k)                               in layers with KV heads
    h += r · (Σ p_e expert_e(m) + shared(m))                         or a dense part
    logits = Wout rms(h) / l          h = e · embed[token] at first

Source: Dao and Gu, "Transformers are SSMs" (2024) and the authors' Mamba2 module (the norm's
groups); IBM's Granite 4.0 and transformers' modeling_granitemoehybrid.
"""

import numpy as np

import reference
import reference_mamba2 as mamba2
from reference import silu


class Reference(reference.Decoder):
    def _embed(self, tokens):
        return self._key("embedding_scale", 1.0) * super()._embed(tokens)

    def _output(self, h):
        return super()._output(h) / self._key("logit_scale", 1.0)

    def _layer(self, h, layer):
        block = f"blk.{layer}."
        scale = self._key("residual_scale", 1.0)
        h = h + scale * self._attention(block, self._norm(h, block + "attn_norm"), layer)
        m = self._norm(h, block + "ffn_norm")
        if block + "ffn_gate_inp.weight" in self._weights:
            return h + scale * (self._experts(block, m) + self._shared(block, m))
        return h + scale * self._feed_forward(block, m)

    def _attention(self, block, x, layer):
        kv_heads = self._key("attention.head_count_kv")[layer]
        if kv_heads == 0:
            return mamba2.mix(self, block, x)
        rotates = self._meta.get(self._prefix + ".rope.scaling.finetuned", True)
        freq, magnitude = self._rotation(layer)
        heads = {}
        for name, count in (("q", self.heads), ("k", kv_heads), ("v", kv_heads)):
            y = self._project(f"{block}attn_{name}", x).reshape(len(x), count, -1)
            rotated = rotates and name != "v"
            heads[name] = reference.rope.rotate(y, freq, magnitude, True) if rotated else y
        out = reference.attend(heads["q"], heads["k"], heads["v"], self._seen(layer, len(x)),
                               self._key("attention.scale", 1 / np.sqrt(self.head_dim)))
        return self._project(block + "attn_output", out.reshape(len(x), -1))

    def _shared(self, block, x):
        gate, up = (self._project(f"{block}ffn_{name}_shexp", x) for name in ("gate", "up"))
        return self._project(block + "ffn_down_shexp", silu(gate) * up)
