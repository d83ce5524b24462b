"""Families of attention and a feed-forward part in float64, by what they do otherwise than llama.

    h += attention(norm(h));  h += ffn(norm(h))      q, k, v = W n (+ b), rotated by halves

    apertus       Wdown xielu(Wup m); q and k of each head normed
    bailingmoe2   q, k, v are one matrix's rows; head norms; half of a head rotated; experts as dots1's,
                  from the groups whose two best biased values have the largest sum
    cohere2       neighbours; h += attention(n) + ffn(n) with n = (h - mean) / deviation * weight; three of
                  four layers have a window, and only these rotate; logits times logit_scale
    dots1         head norms; experts e chosen by sigmoid(Wrouter m) + bias, weighted by s · sigmoid / Σ,
                  + an expert for all tokens
    ernie4_5      neighbours; -moe: softmax(Wrouter m) + bias chooses, softmax / Σ weighs; shared expert
    exaone4       no norm before a part, one after it; head norms; with 64 layers three of four have a
                  window, and only these rotate
    glm4          neighbours; half rotated; norms before and after; gate and up are one matrix's rows
    glm4moe       half rotated; head norms; experts as dots1's
    granite       neighbours; factors on embedding, results, scores; logits divided; -moe: shared expert
    hunyuan       head norms after the rotation; -dense: base · alpha^(d / (d - 2)); -moe: shared expert
    minimax-m2    q and k normed over all heads; half rotated; sigmoid experts as dots1's, unscaled
    olmo2         as exaone4 with norms over all heads; window layers rotate without scaling
    phi3          q, k, v one matrix, gate and up too; frequencies divided by rope_factors_long, and the
                  rotated values times attn_factor; a window applies to all layers
    seed_oss      biases
    smollm3       neighbours; every fourth layer does not rotate

Sources: the modules of these names in Hugging Face's transformers, and the papers that the families' files
name.
"""

import dataclasses

import numpy as np

import reference
import rope
from reference import silu


@dataclasses.dataclass(frozen=True)
class Form:
    neighbors: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    parallel: bool = False
    centered: bool = False  # norms subtract the mean
    ffn_norm: str = "ffn_norm"
    norms: str = "heads"  # of q and k, if the file has them: heads, rotated or rows
    period: int = 0  # every so many layers one without a window, if the file states a window
    unrotated: bool = False  # layers without a window are not rotated
    sigmoid: bool = False


FORMS = {
    "apertus": Form(),
    "bailingmoe2": Form(sigmoid=True),
    "cohere2": Form(neighbors=True, parallel=True, centered=True, period=4, unrotated=True),
    "dots1": Form(sigmoid=True),
    "ernie4_5": Form(neighbors=True),
    "ernie4_5-moe": Form(neighbors=True),
    "exaone4": Form(pre_norms=False, post_norms=True, period=4, unrotated=True),
    "glm4": Form(neighbors=True, post_norms=True),
    "glm4moe": Form(ffn_norm="post_attention_norm", sigmoid=True),
    "granite": Form(neighbors=True),
    "granitemoe": Form(neighbors=True),
    "hunyuan-dense": Form(norms="rotated"),
    "hunyuan-moe": Form(norms="rotated"),
    "minimax-m2": Form(norms="rows", sigmoid=True),
    "olmo2": Form(pre_norms=False, post_norms=True, norms="rows", period=4),
    "phi3": Form(),
    "seed_oss": Form(ffn_norm="post_attention_norm"),
    "smollm3": Form(neighbors=True),
}
EXAONE_LAYERS_WITH_WINDOWS = 64


class Reference(reference.Decoder):
    def __init__(self, path):
        super().__init__(path)
        self.form = FORMS[self._prefix]
        self.layers -= self._key("nextn_predict_layers", 0)  # blocks of a draft head
        self._neighbors = self.form.neighbors
        self.window = self._key("attention.sliding_window", 0)
        if self._prefix == "exaone4" and self.layers != EXAONE_LAYERS_WITH_WINDOWS:
            self.window = 0
        dims = 2 * len(self._freq)
        base = self._key("rope.freq_base", 10000.0)
        alpha = self._key("rope.scaling.alpha", 0.0)
        if alpha:
            self._freq = rope.plain(base * alpha ** (dims / (dims - 2)), dims)
        if "rope_factors_long.weight" in self._weights:
            self._freq = rope.plain(base, dims) / self._weights["rope_factors_long.weight"]
        self._magnitude *= self._key("rope.scaling.attn_factor", 1.0)
        self._plain = rope.plain(base, dims)

    def _windowed(self, layer):
        period = self._key("attention.sliding_window_pattern", self.form.period)
        return bool(self.window) and (not period or layer % period < period - 1)

    def _seen(self, layer, count):
        return reference.seen_keys(count, self.window if self._windowed(layer) else 0)

    def _embed(self, tokens):
        return super()._embed(tokens) * self._key("embedding_scale", 1.0)

    def _output(self, h):
        logits, scale = super()._output(h), self._key("logit_scale", 1.0)
        return logits * scale if self._prefix == "cohere2" else logits / scale

    def _norm(self, x, name):
        return super()._norm(x - x.mean(axis=-1, keepdims=True) if self.form.centered else x, name)

    def _layer(self, h, layer):
        form, block = self.form, f"blk.{layer}."

        def read(name):
            return self._norm(h, block + name) if form.pre_norms else h

        def result(y, name):
            y = y * self._key("residual_scale", 1.0)
            return self._norm(y, block + name) if form.post_norms else y

        n = read("attn_norm")
        attended = result(self._attention(block, n, layer), "post_attention_norm")
        if form.parallel:
            return h + attended + self._part(block, n, layer)
        h = h + attended
        return h + result(self._part(block, read(form.ffn_norm), layer), "post_ffw_norm")

    def _rotate(self, x, layer):
        if self._prefix == "smollm3" and (layer + 1) % 4 == 0:
            return x
        windowed = self._windowed(layer)
        if self.form.unrotated and self.window and not windowed:
            return x
        if self._prefix == "olmo2" and windowed:
            return rope.rotate(x, self._plain, 1.0, False)
        return rope.rotate(x, self._freq, self._magnitude, self._neighbors)

    def _heads(self, block, name, x, count, layer):
        """Returns a matrix's heads [tokens, count, dim], normed and rotated."""
        norm = f"{block}attn_{name}_norm"
        normed = norm + ".weight" in self._weights
        if normed and self.form.norms == "rows":
            x = self._norm(x, norm)
        x = x.reshape(len(x), count, -1)
        if normed and self.form.norms == "heads":
            x = self._norm(x, norm)
        x = self._rotate(x, layer)
        return self._norm(x, norm) if normed and self.form.norms == "rotated" else x

    def _attention(self, block, x, layer):
        if block + "attn_qkv.weight" in self._weights:
            q, k = self.heads * self.head_dim, self.kv_heads * self.head_dim
            parts = np.split(self._project(block + "attn_qkv", x), [q, q + k], axis=-1)
        else:
            parts = [self._project(f"{block}attn_{name}", x) for name in "qkv"]
        q = self._heads(block, "q", parts[0], self.heads, layer)
        k = self._heads(block, "k", parts[1], self.kv_heads, layer)
        v = parts[2].reshape(len(x), self.kv_heads, -1)
        scale = self._key("attention.scale", 1 / np.sqrt(self.head_dim))
        out = reference.attend(q, k, v, self._seen(layer, len(x)), scale)
        return self._project(block + "attn_output", out.reshape(len(x), -1))

    def _part(self, block, x, layer):
        if block + "ffn_gate_inp.weight" in self._weights:
            return self._experts(block, x)
        up = self._project(block + "ffn_up", x)
        if block + "ffn_gate.weight" in self._weights:
            inner = silu(self._project(block + "ffn_gate", x)) * up
        elif "xielu.beta" in self._meta:
            inner = self._xielu(up, layer)
        else:
            gate, up = np.split(up, 2, axis=-1)
            inner = silu(gate) * up
        return self._project(block + "ffn_down", inner)

    def _xielu(self, x, layer):
        positive, negative, beta, eps = (float(self._meta["xielu." + name][layer])
                                         for name in ("alpha_p", "alpha_n", "beta", "eps"))
        positive, negative = np.log1p(np.exp(positive)), beta + np.log1p(np.exp(negative))
        below = negative * (np.expm1(np.minimum(x, eps)) - x) + beta * x
        return np.where(x > 0, positive * x * x + beta * x, below)

    def _choose(self, values):
        groups = self._key("expert_group_count", 1)
        if groups > 1:
            members = values.reshape(len(values), groups, -1)
            worth = np.sort(members, axis=-1)[..., -2:].sum(axis=-1)
            order = np.argsort(-worth, axis=-1, kind="stable")
            place = np.argsort(order, axis=-1, kind="stable")
            outside = place >= self._key("expert_group_used_count")
            values = np.where(np.repeat(outside, members.shape[-1], axis=-1), -np.inf, values)
        return np.argsort(-values, axis=-1, kind="stable")[:, :self.experts_used]

    def _gated(self, x, block, suffix, expert=...):
        gate, up, down = (self._weights[f"{block}ffn_{name}{suffix}.weight"][expert]
                          for name in ("gate", "up", "down"))
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def _experts(self, block, x):
        scores = self._project(block + "ffn_gate_inp", x)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p = 1 / (1 + np.exp(-scores)) if self.form.sigmoid else p / p.sum(axis=-1, keepdims=True)
        chosen = self._choose(p + self._weights.get(block + "exp_probs_b.bias", 0.0))
        share = np.take_along_axis(p, chosen, axis=-1)
        share = share / share.sum(axis=-1, keepdims=True) * self._key("expert_weights_scale", 1.0)
        shared = block + "ffn_up_shexp.weight" in self._weights
        out = self._gated(x, block, "_shexp") if shared else np.zeros_like(x)
        for expert in range(p.shape[-1]):
            token, place = np.nonzero(chosen == expert)
            out[token] += share[token, place][:, None] * self._gated(x[token], block, "_exps",
                                                                     expert)
        return out
