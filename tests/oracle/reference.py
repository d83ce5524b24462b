"""The decoder architectures in float64, from their equations: the reference for both engines.

    h   = embed[token]
    h  += Wo · attention(rope(q), rope(k), v)              q, k, v = W n (+ b)
    h  += Wdown · (silu(Wgate m) * Wup m)                  n = rms(h) * attn_norm
    logits = Wout · (rms(h) * output_norm)                 m = rms(h) * ffn_norm

    llama             a window, if the file has one, applies to all layers
    llama, mistral3   rotate neighbours; mistral3 also multiplies the query at position p by
                      1 + s · ln(1 + floor(p / original context))
    qwen2, qwen2vl    rotates halves; biases on q, k, v
    qwen3             rotates halves; q and k of each head are normed before
    experts           the feed-forward part is Σ p_e · expert_e(m) over the experts with the largest
                      p = softmax(Wrouter m), their p divided by their sum

Families with more differences have their own module, with a class that reuses these parts; see
MODULES.

Sources: Touvron et al. 2023 (LLaMA); Su et al. 2021 (RoPE); Ainslie et al. 2023 (grouped-query
attention); Jiang et al. 2023, 2024 (Mistral, Mixtral); Yang et al. 2024, 2025 (Qwen2, Qwen3), and
Hugging Face's modules of these names. Nothing is rounded: the K/V cache is float64 too. There is
one sequence, with positions from 0.
"""

import importlib
import sys

import numpy as np

import rope
from gguf_file import GgufFile

ROTATES_NEIGHBORS = {"llama": True, "mistral3": True, "qwen2": False, "qwen2vl": False, "qwen3": False,
                     "qwen3moe": False}

NVFP4 = 40  # ggml's number

# Architecture: the module with its class, which is named Reference. Others are in reference_blocks.
MODULES = {"deepseek2": "reference_deepseek2", "falcon-h1": "reference_mamba2",
           "mamba2": "reference_mamba2", "nemotron_h": "reference_mamba2",
           "nemotron_h_moe": "reference_mamba2", "gemma2": "reference_gemma",
           "gemma3": "reference_gemma", "gemma3n": "reference_gemma3n", "gemma4": "reference_gemma4", "gpt-oss": "reference_gpt_oss",
           "granitehybrid": "reference_granitehybrid", "lfm2": "reference_lfm2",
           "lfm2moe": "reference_lfm2",
           "llama4": "reference_llama4", "mllama": "reference_mllama",
           "qwen35": "reference_qwen3next", "qwen35moe": "reference_qwen3next",
           "qwen3next": "reference_qwen3next", "t5": "reference_t5"}


def silu(x):
    return x / (1 + np.exp(-x))


def seen_keys(count, window=0, chunk=0):
    """Returns bool [count, count]: true if the query of row i sees the key of column j.

    `window` counts keys, the query's own included; a chunk begins at its multiples. 0: none.
    """
    query, key = np.arange(count)[:, None], np.arange(count)
    seen = key <= query
    if window:
        seen &= query - key < window
    if chunk:
        seen &= query // chunk == key // chunk
    return seen


def attend(q, k, v, seen, scale, cap=0.0, sinks=None):
    """Returns softmax(scale · q · k) · v over seen keys for q [tokens, heads, dim] and for k and v
    with fewer heads.

    `cap`: scores become cap · tanh(score / cap). `sinks` [heads]: a logit in each head's denominator
    that belongs to no key.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    out = np.empty((len(q), heads, v.shape[-1]))
    for head in range(heads):
        shared = head * kv_heads // heads
        scores = scale * (q[:, head] @ k[:, shared].T)
        if cap:
            scores = cap * np.tanh(scores / cap)
        scores[~seen] = -np.inf
        largest = scores.max(axis=-1, keepdims=True)
        nothing = 0.0
        if sinks is not None:
            largest = np.maximum(largest, sinks[head])
            nothing = np.exp(sinks[head] - largest)
        scores = np.exp(scores - largest)
        out[:, head] = scores / (scores.sum(axis=-1, keepdims=True) + nothing) @ v[:, shared]
    return out


class Decoder:
    """A model held in float64; REQUIRES memory of eight bytes per weight."""

    OUTPUT_NORM = "output_norm"  # the family's name of the last norm
    FFN_NORM = "ffn_norm"

    def __init__(self, path):
        self._file = GgufFile(path)
        self._meta = self._file.metadata
        self._prefix = self._meta["general.architecture"]
        # Most families rotate halves, like NeoX.
        self._neighbors = ROTATES_NEIGHBORS.get(self._prefix, False)
        self.layers = self._key("block_count")
        self.heads = self._key("attention.head_count")
        self.kv_heads = self._key("attention.head_count_kv", self.heads)
        self.head_dim = self._key("attention.key_length",
                                  self._key("embedding_length") // max(self.heads, 1))
        self.epsilon = self._key("attention.layer_norm_rms_epsilon",
                                 self._key("attention.layer_norm_epsilon", 0.0))
        self.experts_used = self._key("expert_used_count", 0)
        self._weights = {name: self._file.tensor(name) for name in self._file.tensors}
        self._apply_factors()
        self._freq, self._magnitude = rope.rotation(
            self._meta, self._prefix, self._key("rope.dimension_count", self.head_dim),
            self._weights.get("rope_freqs.weight", 1.0))

    def _apply_factors(self):
        """Multiplies matrices of NVFP4 by their factors, NAME.scale: one, or one for each expert."""
        for name, info in self._file.tensors.items():
            factors = self._weights.get(name.removesuffix(".weight") + ".scale")
            if info.type == NVFP4 and factors is not None:
                self._weights[name] *= factors.reshape(-1, *[1] * (len(info.dims) - 1))

    def logits(self, tokens):
        """Returns float64 [tokens, vocab]; row i has the logits after token i."""
        h = self._embed(np.asarray(tokens))
        for layer in range(self.layers):
            h = self._layer(h, layer)
        return self._output(h)

    def _key(self, name, otherwise=None):
        key = f"{self._prefix}.{name}"
        return self._meta[key] if otherwise is None else self._meta.get(key, otherwise)

    def _embed(self, tokens):
        return self._weights["token_embd.weight"][tokens]

    def _output(self, h):
        output = self._weights.get("output.weight", self._weights["token_embd.weight"])
        return self._norm(h, self.OUTPUT_NORM) @ output.T

    def _layer(self, h, layer):
        block = f"blk.{layer}."
        h = h + self._attention(block, self._norm(h, block + "attn_norm"), layer)
        m = self._norm(h, block + self.FFN_NORM)
        routed = block + "ffn_gate_inp.weight" in self._weights
        return h + (self._experts(block, m) if routed else self._feed_forward(block, m))

    def _norm(self, x, name):
        rms = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return x / rms * self._weights[name + ".weight"]

    def _project(self, name, x):
        return x @ self._weights[name + ".weight"].T + self._weights.get(name + ".bias", 0.0)

    def _rotation(self, layer):
        """Returns (frequencies [dims / 2], factor on the rotated values) of a layer."""
        return self._freq, self._magnitude

    def _seen(self, layer, count):
        """Returns bool [count, count]: the keys that each query of the layer sees."""
        window = self._key("attention.sliding_window", 0) if self._prefix == "llama" else 0
        return seen_keys(count, window)

    def _rotated(self, name, x, heads, layer):
        y = self._project(name, x).reshape(len(x), heads, -1)
        if name + "_norm.weight" in self._weights:
            y = self._norm(y, name + "_norm")
        freq, magnitude = self._rotation(layer)
        return rope.rotate(y, freq, magnitude, self._neighbors)

    def _temperatures(self, count):
        scale = self._key("attention.temperature_scale", 0.0)
        if scale == 0.0:
            return np.ones(count)
        context = self._key("rope.scaling.original_context_length")
        return 1 + scale * np.log(1 + np.arange(count) // context)

    def _attention(self, block, x, layer):
        q = self._rotated(block + "attn_q", x, self.heads, layer)
        q = q * self._temperatures(len(x))[:, None, None]
        k = self._rotated(block + "attn_k", x, self.kv_heads, layer)
        v = self._project(block + "attn_v", x).reshape(len(x), self.kv_heads, -1)
        out = attend(q, k, v, self._seen(layer, len(x)), 1 / np.sqrt(self.head_dim))
        return self._project(block + "attn_output", out.reshape(len(x), -1))

    def _feed_forward(self, block, x):
        gate, up = self._project(block + "ffn_gate", x), self._project(block + "ffn_up", x)
        return self._project(block + "ffn_down", silu(gate) * up)

    def _experts(self, block, x):
        scores = self._project(block + "ffn_gate_inp", x)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        chosen = np.argsort(-p, axis=-1, kind="stable")[:, :self.experts_used]
        share = np.take_along_axis(p, chosen, axis=-1)
        share /= share.sum(axis=-1, keepdims=True)
        gate, up, down = (self._weights[f"{block}ffn_{name}_exps.weight"]
                          for name in ("gate", "up", "down"))
        out = np.zeros_like(x)
        for expert in range(p.shape[-1]):
            token, place = np.nonzero(chosen == expert)
            m = x[token]
            y = (silu(m @ gate[expert].T) * (m @ up[expert].T)) @ down[expert].T
            out[token] += share[token, place][:, None] * y
        return out


def load(path):
    """Returns the file's model, as the class of its architecture."""
    name = GgufFile(path).metadata["general.architecture"]
    if name in ROTATES_NEIGHBORS:
        return Decoder(path)
    return importlib.import_module(MODULES.get(name, "reference_blocks")).Reference(path)


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: reference.py MODEL.gguf TOKENS OUT.npy    (TOKENS: 1,2,3)")
    tokens = [int(t) for t in sys.argv[2].split(",")]
    np.save(sys.argv[3], load(sys.argv[1]).logits(tokens))


if __name__ == "__main__":
    main()
