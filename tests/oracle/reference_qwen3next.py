"""qwen3next, qwen35 and qwen35moe in float64: gated delta nets, gated attention, experts with a shared one.

    q, k, v = silu(conv(Wqkv n))         q, k of each head divided by √(Σx² + 1e-6), q also by √d
    S = g S + k (β (v - (g S)ᵀ k))ᵀ      g = exp(a softplus(α + bias)), β = sigmoid(b)
    h += Wout (rms(Sᵀ q) · silu(z))      the norm over each head
    h += Wo (attention · sigmoid(gate))  in the other layers; q and gate alternate head by head
    h += Σ p_e expert_e(m) + sigmoid(w · m) shared(m)

Key head j serves value heads j·r … j·r + r - 1; b and α come interleaved, r of one and r of the other
for each key head. A part of each head is rotated, by halves.

qwen35, qwen35moe: value head h is served by key head h mod (key heads); b and α have a matrix each; of the
pairs, p rotates if p is below three times the section of its coordinate, p mod 3. qwen35 has no experts.

Source: Qwen team, "Qwen3-Next" (2025), transformers' modeling_qwen3_next; Yang, Kautz,
Hatamizadeh, "Gated delta networks" (2024).
"""

import numpy as np

import recurrence
import reference
from recurrence import sigmoid
from reference import silu


class Reference(reference.Decoder):
    FFN_NORM = "post_attention_norm"

    def _attention(self, block, x, layer):
        if (layer + 1) % self._key("full_attention_interval", 4) == 0:
            return self._gated_attention(block, x, layer)
        return self._delta_net(block, x)

    def _delta_net(self, block, x):
        groups, heads = self._key("ssm.group_count"), self._key("ssm.time_step_rank")
        k_dim, v_dim = self._key("ssm.state_size"), self._key("ssm.inner_size") // heads
        mixed = silu(recurrence.convolve(self._project(block + "attn_qkv", x),
                                         self._weights[block + "ssm_conv1d.weight"]))
        q, k, v = np.split(mixed, [groups * k_dim, 2 * groups * k_dim], axis=-1)
        unit = [part / np.sqrt(np.sum(part * part, axis=-1, keepdims=True) + 1e-6)
                for part in (q.reshape(len(x), groups, k_dim), k.reshape(len(x), groups, k_dim))]
        if self._prefix == "qwen3next":
            q, k = (recurrence.of_groups(part, heads) for part in unit)
            ba = self._project(block + "ssm_ba", x).reshape(len(x), groups, 2, heads // groups)
            b, alpha = (ba[:, :, i].reshape(len(x), heads) for i in range(2))
        else:
            q, k = (np.tile(part, (1, heads // groups, 1)) for part in unit)
            b, alpha = (self._project(block + name, x) for name in ("ssm_beta", "ssm_alpha"))
        step = recurrence.softplus(alpha + self._weights[block + "ssm_dt.bias"])
        y = recurrence.scan(q / np.sqrt(k_dim), k, v.reshape(len(x), heads, v_dim),
                            np.exp(self._weights[block + "ssm_a"] * step), sigmoid(b), delta=True)
        z = self._project(block + "attn_gate", x).reshape(y.shape)
        y = self._norm(y, block + "ssm_norm") * silu(z)
        return self._project(block + "ssm_out", y.reshape(len(x), -1))

    def _rotation(self, layer):
        freq, magnitude = super()._rotation(layer)
        sections = self._key("rope.dimension_sections", [])
        if sections:
            pair = np.arange(len(freq)) % sum(sections)
            freq = np.where(pair < 3 * np.asarray(sections)[pair % 3], freq, 0.0)
        return freq, magnitude

    def _gated_attention(self, block, x, layer):
        both = self._project(block + "attn_q", x).reshape(len(x), self.heads, 2, self.head_dim)
        freq, magnitude = self._rotation(layer)
        rotate = lambda y: reference.rope.rotate(y, freq, magnitude, False)
        q = rotate(self._norm(both[:, :, 0], block + "attn_q_norm"))
        k = self._rotated(block + "attn_k", x, self.kv_heads, layer)
        v = self._project(block + "attn_v", x).reshape(len(x), self.kv_heads, -1)
        out = reference.attend(q, k, v, self._seen(layer, len(x)), 1 / np.sqrt(self.head_dim))
        out = out * sigmoid(both[:, :, 1])
        return self._project(block + "attn_output", out.reshape(len(x), -1))

    def _experts(self, block, x):
        gate, up = (self._project(f"{block}ffn_{name}_shexp", x) for name in ("gate", "up"))
        shared = self._project(block + "ffn_down_shexp", silu(gate) * up)
        share = sigmoid(x @ self._weights[block + "ffn_gate_inp_shexp.weight"])
        return super()._experts(block, x) + share[:, None] * shared
