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

import recurrence
import reference
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
            return self._mamba(block, x)
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

    def _mamba(self, block, x):
        inner, heads = self._key("ssm.inner_size"), self._key("ssm.time_step_rank")
        groups, k_dim = self._key("ssm.group_count"), self._key("ssm.state_size")
        z, mixed, delta = np.split(self._project(block + "ssm_in", x), [inner, -heads], axis=-1)
        mixed = recurrence.convolve(mixed, self._weights[block + "ssm_conv1d.weight"])
        mixed = silu(mixed + self._weights.get(block + "ssm_conv1d.bias", 0.0))
        v, b, c = np.split(mixed, [inner, inner + groups * k_dim], axis=-1)
        v = v.reshape(len(x), heads, -1)
        b, c = (recurrence.of_groups(part.reshape(len(x), groups, k_dim), heads)
                for part in (b, c))
        step = recurrence.softplus(delta + self._weights[block + "ssm_dt.bias"])
        decay = np.exp(self._weights[block + "ssm_a"].reshape(-1) * step)
        y = recurrence.scan(c, b, v, decay, step, delta=False)
        y = y + self._weights[block + "ssm_d"].reshape(heads, 1) * v
        y = (y.reshape(len(x), inner) * silu(z)).reshape(len(x), groups, -1)
        rms = np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + self.epsilon)
        y = y / rms * self._weights[block + "ssm_norm.weight"].reshape(groups, -1)
        return self._project(block + "ssm_out", y.reshape(len(x), inner))

    def _shared(self, block, x):
        gate, up = (self._project(f"{block}ffn_{name}_shexp", x) for name in ("gate", "up"))
        return self._project(block + "ffn_down_shexp", silu(gate) * up)
