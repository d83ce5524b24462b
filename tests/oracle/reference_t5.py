"""t5 in float64, from its equations: an encoder over one text, a decoder with cross-attention.

    encoder   h += A(rms(h));  h += F(rms(h));  then rms(h)
    decoder   h += A(rms(h)), causal;  h += A(rms(h)) over the encoder's;  h += F(rms(h))

    A         softmax(q · k + b[bucket(key - query)]) v, without scaling or rotation; without b
              over the encoder's output
    F         down(gelu(gate n) * up n), gelu in its tanh form; or down(relu(up n))
    logits    Wout rms(h); divided by sqrt(hidden_size) if Wout is the embedding

Buckets: for bidirectional attention, half of them are for later keys. Of the n buckets of one
direction, the first n / 2 have one distance each; the others grow geometrically up to distance 128.

Sources: Raffel et al. 2020 (T5); Hugging Face's modeling_t5 (`_relative_position_bucket`).
"""

import math

import numpy as np

from gguf_file import GgufFile

MAX_DISTANCE = 128


def bucket(distance, count, bidirectional):
    first = 0
    if bidirectional:
        count //= 2
        first = count if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = count // 2
    if distance < exact:
        return first + distance
    grown = math.log(distance / exact) / math.log(MAX_DISTANCE / exact) * (count - exact)
    return first + min(exact + math.floor(grown + 1e-12), count - 1)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


class Reference:
    def __init__(self, path):
        file = GgufFile(path)
        meta = file.metadata
        self._weights = {name: file.tensor(name) for name in file.tensors}
        self._heads = meta["t5.attention.head_count"]
        self._epsilon = meta["t5.attention.layer_norm_rms_epsilon"]
        self._layers = meta["t5.block_count"]
        self._decoder_layers = meta.get("t5.decoder_block_count", self._layers)
        self._start = meta.get("t5.decoder_start_token_id", 0)

    def logits(self, tokens, text):
        """Returns float64 [1 + tokens, vocab] after the encoder has read `text`. Row 0 follows the
        start token."""
        embed = self._weights["token_embd.weight"]
        seen = self._encoded(embed[np.asarray(text)])
        h = embed[np.asarray([self._start, *tokens])]
        bias = self._bias("dec.blk.0.attn_rel_b", len(h), bidirectional=False)
        bias[:, np.triu(np.ones((len(h), len(h)), bool), 1)] = -np.inf
        for layer in range(self._decoder_layers):
            block = f"dec.blk.{layer}."
            h = h + self._attention(block + "attn", h, None, bias)
            h = h + self._attention(block + "cross_attn", h, seen, 0.0)
            h = h + self._feed_forward(block, h)
        h = self._norm(h, "dec.output_norm")
        if "output.weight" in self._weights:
            return h @ self._weights["output.weight"].T
        return h @ embed.T / math.sqrt(embed.shape[1])

    def _encoded(self, h):
        bias = self._bias("enc.blk.0.attn_rel_b", len(h), bidirectional=True)
        for layer in range(self._layers):
            block = f"enc.blk.{layer}."
            h = h + self._attention(block + "attn", h, None, bias)
            h = h + self._feed_forward(block, h)
        return self._norm(h, "enc.output_norm")

    def _bias(self, name, count, bidirectional):
        """Returns float64 [heads, count, count]: by head, query and key."""
        table = self._weights[name + ".weight"]  # [buckets, heads]
        by_distance = np.array([table[bucket(d, len(table), bidirectional)]
                                for d in range(-count + 1, count)])
        distance = np.arange(count) - np.arange(count)[:, None]
        return np.moveaxis(by_distance[distance + count - 1], -1, 0)

    def _norm(self, x, name):
        rms = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self._epsilon)
        return x / rms * self._weights[name + ".weight"]

    def _attention(self, name, h, other, bias):
        n = self._norm(h, name + "_norm")
        over = n if other is None else other
        q, k, v = ((x @ self._weights[f"{name}_{part}.weight"].T).reshape(len(x), self._heads, -1)
                   for part, x in (("q", n), ("k", over), ("v", over)))
        scores = np.einsum("qhd,khd->hqk", q, k) + bias
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", p, v).reshape(len(h), -1)
        return out @ self._weights[name + "_o.weight"].T

    def _feed_forward(self, block, h):
        n = self._norm(h, block + "ffn_norm")
        up = n @ self._weights[block + "ffn_up.weight"].T
        if block + "ffn_gate.weight" in self._weights:
            up = gelu(n @ self._weights[block + "ffn_gate.weight"].T) * up
        else:
            up = np.maximum(up, 0)
        return up @ self._weights[block + "ffn_down.weight"].T
