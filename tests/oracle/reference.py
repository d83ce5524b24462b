"""The llama architecture in float64, from its equations: the truth that both engines approach.

    h   = embed[token]
    h  += Wo · attention(rope(Wq n), rope(Wk n), Wv n)     n = rms(h) * attn_norm
    h  += Wdown · (silu(Wgate m) * Wup m)                  m = rms(h) * ffn_norm
    logits = Wout · (rms(h) * output_norm)

Sources: Touvron et al. 2023 (LLaMA: RMS norm, SwiGLU, RoPE); Su et al. 2021 (RoPE); Ainslie et
al. 2023 (grouped-query attention); Llama 3's frequency factors as the file's rope_freqs tensor.
Nothing is rounded: the K/V cache is float64 too. One sequence, positions from 0.
"""

import sys

import numpy as np

from gguf_file import GgufFile


class Llama:
    """A model held in float64; REQUIRES memory of eight bytes per weight."""

    def __init__(self, path):
        self._file = GgufFile(path)
        meta = self._file.metadata
        self.layers = meta["llama.block_count"]
        self.heads = meta["llama.attention.head_count"]
        self.kv_heads = meta.get("llama.attention.head_count_kv", self.heads)
        width = meta["llama.embedding_length"]
        self.head_dim = meta.get("llama.attention.key_length", width // self.heads)
        self.epsilon = meta["llama.attention.layer_norm_rms_epsilon"]
        self._weights = {name: self._file.tensor(name) for name in self._file.tensors}
        self._inv_freq = self._frequencies(meta)

    def logits(self, tokens):
        """float64 [tokens, vocab]; row i is the answer after token i."""
        embed = self._weights["token_embd.weight"]
        h = embed[np.asarray(tokens)]
        for layer in range(self.layers):
            h = h + self._attention(layer, self._norm(h, f"blk.{layer}.attn_norm.weight"))
            h = h + self._feed_forward(layer, self._norm(h, f"blk.{layer}.ffn_norm.weight"))
        output = self._weights.get("output.weight", embed)
        return self._norm(h, "output_norm.weight") @ output.T

    def _frequencies(self, meta):
        dims = meta.get("llama.rope.dimension_count", self.head_dim)
        base = meta.get("llama.rope.freq_base", 10000.0)
        inv_freq = base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
        return inv_freq / self._weights.get("rope_freqs.weight", 1.0)

    def _norm(self, x, weight):
        rms = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return x / rms * self._weights[weight]

    def _rope(self, x):
        """Turns pairs (2i, 2i+1) of x [tokens, heads, head_dim], the order of llama's files."""
        angles = np.arange(len(x))[:, None] * self._inv_freq
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        dims = 2 * len(self._inv_freq)
        even, odd = x[..., 0:dims:2], x[..., 1:dims:2]
        turned = x.copy()
        turned[..., 0:dims:2] = even * cos - odd * sin
        turned[..., 1:dims:2] = even * sin + odd * cos
        return turned

    def _attention(self, layer, x):
        def project(name, heads):
            y = x @ self._weights[f"blk.{layer}.attn_{name}.weight"].T
            return y.reshape(len(x), heads, -1)

        q = self._rope(project("q", self.heads))
        k = self._rope(project("k", self.kv_heads))
        v = project("v", self.kv_heads)
        future = np.triu(np.ones((len(x), len(x)), bool), 1)
        out = np.empty((len(x), self.heads, v.shape[-1]))
        for head in range(self.heads):
            shared = head * self.kv_heads // self.heads
            scores = q[:, head] @ k[:, shared].T / np.sqrt(self.head_dim)
            scores[future] = -np.inf
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, head] = scores / scores.sum(axis=-1, keepdims=True) @ v[:, shared]
        return out.reshape(len(x), -1) @ self._weights[f"blk.{layer}.attn_output.weight"].T

    def _feed_forward(self, layer, x):
        gate = x @ self._weights[f"blk.{layer}.ffn_gate.weight"].T
        up = x @ self._weights[f"blk.{layer}.ffn_up.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self._weights[f"blk.{layer}.ffn_down.weight"].T


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: reference.py MODEL.gguf TOKENS OUT.npy    (TOKENS: 1,2,3)")
    tokens = [int(t) for t in sys.argv[2].split(",")]
    np.save(sys.argv[3], Llama(sys.argv[1]).logits(tokens))


if __name__ == "__main__":
    main()
