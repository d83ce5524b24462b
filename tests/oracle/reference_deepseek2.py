"""deepseek2 in float64, from its equations, with explicit keys and values of every head.

    [c | t] = Wa n;  c = rms(c) * norm;  t rotated        q_h = [n_h | r_h] of Wq n, r_h rotated
    k_h = [Wk_h c | t];  v_h = Wv_h c                      scores (1 + m ln s)² / sqrt(|q_h|) · q_h · k_h

    m, s   YaRN's multiplier and factor; YaRN's magnitude is not applied to rotated values
    q      Wq n, or Wb (rms(Wa' n) * norm') if a file has these
    ffn    shared(m) + Σ w_e · expert_e(m), over the experts e with the largest p + bias in the best
           groups; p = softmax or sigmoid of Wrouter m; w = p, divided by their sum if the file says
           so, times a factor. A group's score is its best expert (softmax, V2) or the sum of its two
           best (sigmoid, V3).

Sources: DeepSeek-V2 (2024), section 2.1; DeepSeek-V3 (2024), section 2.1, and the modules
published with the models (modeling_deepseek.py).
"""

import numpy as np

import rope
from reference import Decoder, attend, seen_keys, silu


class Reference(Decoder):
    def __init__(self, path):
        super().__init__(path)
        self._neighbors = True
        self._rank = self._key("attention.kv_lora_rank")
        self._rope = self._key("rope.dimension_count")
        self._query = self._meta.get("deepseek2.attention.key_length_mla",
                                     self._key("attention.key_length"))
        self._freq, _ = rope.rotation(self._meta, self._prefix, self._rope, 1.0)
        growth = 1.0
        if self._meta.get("deepseek2.rope.scaling.type") == "yarn":
            growth += (self._key("rope.scaling.yarn_log_multiplier")
                       * np.log(self._key("rope.scaling.factor")))
        self._scale = growth ** 2 / np.sqrt(self._query)

    def _rotate(self, x):
        return rope.rotate(x, self._freq, 1.0, self._neighbors)

    def _queries(self, block, x):
        if block + "attn_q_a.weight" in self._weights:
            x = self._norm(self._project(block + "attn_q_a", x), block + "attn_q_a_norm")
            q = self._project(block + "attn_q_b", x)
        else:
            q = self._project(block + "attn_q", x)
        q = q.reshape(len(x), self.heads, self._query)
        plain = self._query - self._rope
        return np.concatenate([q[..., :plain], self._rotate(q[..., plain:])], axis=-1)

    def _expanded(self, block, c):
        """Returns every head's key without the rotated values, and its value: [tokens, heads, dim] each."""
        if block + "attn_kv_b.weight" in self._weights:
            both = self._project(block + "attn_kv_b", c).reshape(len(c), self.heads, -1)
            return np.split(both, [self._query - self._rope], axis=-1)
        k = np.einsum("tr,hrd->thd", c, self._weights[block + "attn_k_b.weight"])
        v = np.einsum("tr,hdr->thd", c, self._weights[block + "attn_v_b.weight"])
        return k, v

    def _attention(self, block, x, layer):
        q = self._queries(block, x)
        latent = self._project(block + "attn_kv_a_mqa", x)
        c = self._norm(latent[:, :self._rank], block + "attn_kv_a_norm")
        rotated = self._rotate(latent[:, None, self._rank:])
        k, v = self._expanded(block, c)
        k = np.concatenate([k, np.repeat(rotated, self.heads, axis=1)], axis=-1)
        out = attend(q, k, v, seen_keys(len(x)), self._scale)
        return self._project(block + "attn_output", out.reshape(len(x), -1))

    def _gates(self, scores):
        if self._key("expert_gating_func") == 2:
            return 1 / (1 + np.exp(-scores))
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return p / p.sum(axis=-1, keepdims=True)

    def _choose(self, p):
        groups = self._key("expert_group_count", 1)
        if groups > 1:
            best = 2 if self._key("expert_gating_func") == 2 else 1
            members = p.reshape(len(p), groups, -1)
            worth = np.sort(members, axis=-1)[..., -best:].sum(axis=-1)
            used = np.argsort(-worth, axis=-1, kind="stable")
            used = used[:, :self._key("expert_group_used_count")]
            outside = np.ones((len(p), groups), bool)
            np.put_along_axis(outside, used, False, axis=-1)
            p = np.where(np.repeat(outside, p.shape[-1] // groups, axis=-1), -np.inf, p)
        return np.argsort(-p, axis=-1, kind="stable")[:, :self.experts_used]

    def _gated(self, x, block, suffix, expert=...):
        gate, up, down = (self._weights[f"{block}ffn_{name}{suffix}.weight"][expert]
                          for name in ("gate", "up", "down"))
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def _experts(self, block, x):
        p = self._gates(self._project(block + "ffn_gate_inp", x))
        chosen = self._choose(p + self._weights.get(block + "exp_probs_b.bias", 0.0))
        share = np.take_along_axis(p, chosen, axis=-1)
        if self._key("expert_weights_norm", False):
            share = share / share.sum(axis=-1, keepdims=True)
        share = share * self._key("expert_weights_scale", 1.0)
        out = self._gated(x, block, "_shexp")
        for expert in range(p.shape[-1]):
            token, place = np.nonzero(chosen == expert)
            out[token] += share[token, place][:, None] * self._gated(x[token], block, "_exps",
                                                                     expert)
        return out
