"""mamba2, falcon-h1, nemotron_h and nemotron_h_moe in float64: Mamba-2 mixers, alone or with attention.

    z, xBC, δ = Win n        x, B, C = silu(conv(xBC) + bias)        Δ = softplus(δ + bias)
    S = exp(a Δ) S + B (Δ x)ᵀ          y = Sᵀ C + d x
    mixer(n) = Wout norm(y · silu(z))          normed in each group of heads, if there is a norm

    mamba2           h += mixer(n)
    falcon-h1        h += mixer(n) + attention(n), halves rotated;    h += feed-forward part
    nemotron_h       h += mixer(n), or attention(n) without rotation, or Wdown relu(Wup n)²
    nemotron_h_moe   the last is Wback Σ p_e expert_e(Winto n) + shared(n), p = 2.5 · sigmoid(Wrouter n) over
                     the experts with the largest p + bias, divided by their sum; expert and shared as above

Source: Dao and Gu, "Transformers are SSMs" (2024) and the authors' Mamba2 module (the norm's groups);
transformers' modeling_falcon_h1 and modeling_nemotron_h.
"""

import numpy as np

import recurrence
import reference
from reference import silu


def mix(model, block, x):
    """Returns the mixer's result [tokens, width] for x."""
    weights, key = model._weights, model._key
    inner, heads = key("ssm.inner_size"), key("ssm.time_step_rank")
    groups, k_dim = key("ssm.group_count"), key("ssm.state_size")
    z, mixed, delta = np.split(model._project(block + "ssm_in", x), [inner, -heads], axis=-1)
    mixed = recurrence.convolve(mixed, weights[block + "ssm_conv1d.weight"])
    mixed = silu(mixed + weights.get(block + "ssm_conv1d.bias", 0.0))
    v, b, c = np.split(mixed, [inner, inner + groups * k_dim], axis=-1)
    v = v.reshape(len(x), heads, -1)
    b, c = (recurrence.of_groups(part.reshape(len(x), groups, k_dim), heads) for part in (b, c))
    step = recurrence.softplus(delta + weights[block + "ssm_dt.bias"])
    decay = np.exp(weights[block + "ssm_a"].reshape(-1) * step)
    y = recurrence.scan(c, b, v, decay, step, delta=False)
    y = y + weights[block + "ssm_d"].reshape(heads, 1) * v
    y = (y.reshape(len(x), inner) * silu(z)).reshape(len(x), groups, -1)
    if block + "ssm_norm.weight" in weights:
        rms = np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + model.epsilon)
        y = y / rms * weights[block + "ssm_norm.weight"].reshape(groups, -1)
    return model._project(block + "ssm_out", y.reshape(len(x), inner))


def relu_squared(x):
    return np.maximum(x, 0) ** 2


class Reference(reference.Decoder):
    def __init__(self, path):
        super().__init__(path)
        if self._prefix == "falcon-h1":  # files name this norm without ".weight"
            for layer in range(self.layers):
                name = f"blk.{layer}.ffn_norm"
                self._weights[name + ".weight"] = self._weights[name]

    def _layer(self, h, layer):
        if self._prefix == "falcon-h1":
            return super()._layer(h, layer)
        block = f"blk.{layer}."
        return h + self._block(block, self._norm(h, block + "attn_norm"), layer)

    def _block(self, block, x, layer):
        if block + "ssm_in.weight" in self._weights:
            return mix(self, block, x)
        if block + "attn_q.weight" in self._weights:
            self.kv_heads = self._key("attention.head_count_kv")[layer]
            return super()._attention(block, x, layer)
        if block + "ffn_gate_inp.weight" in self._weights:
            return self._latent_experts(block, x) + self._plain(block, x, "_shexp")
        return self._plain(block, x)

    def _attention(self, block, x, layer):
        return mix(self, block, x) + super()._attention(block, x, layer)

    def _rotation(self, layer):
        freq, magnitude = super()._rotation(layer)
        return (freq if self._prefix == "falcon-h1" else 0 * freq), magnitude

    def _plain(self, block, x, suffix=""):
        inner = relu_squared(self._project(block + "ffn_up" + suffix, x))
        return self._project(block + "ffn_down" + suffix, inner)

    def _latent_experts(self, block, x):
        p = recurrence.sigmoid(self._project(block + "ffn_gate_inp", x))
        worth = p + self._weights[block + "exp_probs_b.bias"]
        chosen = np.argsort(-worth, axis=-1, kind="stable")[:, :self.experts_used]
        share = np.take_along_axis(p, chosen, axis=-1)
        share = self._key("expert_weights_scale") * share / share.sum(axis=-1, keepdims=True)
        latent = block + "ffn_latent_down.weight" in self._weights
        inputs = self._project(block + "ffn_latent_down", x) if latent else x
        up, down = (self._weights[f"{block}ffn_{name}_exps.weight"] for name in ("up", "down"))
        out = np.zeros_like(inputs)
        for expert in range(p.shape[-1]):
            token, place = np.nonzero(chosen == expert)
            y = relu_squared(inputs[token] @ up[expert].T) @ down[expert].T
            out[token] += share[token, place][:, None] * y
        return self._project(block + "ffn_latent_up", out) if latent else out
