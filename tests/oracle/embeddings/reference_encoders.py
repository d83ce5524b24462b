"""Embedding models and rerankers in float64, from their equations.

    bert family      h = ln(embed[token] + types[0] (+ positions[position]))
                     h = ln(h + Wo · attention(q, k, v))       q, k, v = W h + b, all tokens seen
                     h = ln(h + ffn(h))
      bert           positions; ffn = Wdown gelu(Wup h)
      jina-bert-v2   scores minus slope · distance; ffn = Wdown (gelu(Wgate h) * Wup h); or as bert's, with ln of
                     q's and k's rows and h = ln(ln(h + attention) + h)
      jina-bert-v3   q, k rotated; ffn as bert's
      nomic-bert     q, k rotated; ffn = Wdown (silu(Wgate h) * Wup h)
      …-moe          ffn of layers 1, 3, …: Σ p_e · Wdown gelu(Wup h) over the experts with the largest p
    modern-bert      h = ln(embed[token]); h += Wo attention(ln(h)); h += Wdown (gelu(a) * b), a, b = Wup ln(h); ln(h)
    gemma-embedding  gemma3's layers

Windows: a token sees window // 2 tokens to both sides. Then the pooling, and what follows it: dense layers, or a
reranker's head (tanh or gelu, ln, and a matrix; qwen3: softmax).

Sources: Devlin et al. 2018; Press et al. 2021; Günther et al. 2023; Nussbaum et al. 2024; Warner et al. 2024; Vera et
al. 2025; and Hugging Face's modules. GELU is the tanh form, as llama.cpp has it.
"""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import reference
import reference_gemma
import rope
from reference_gemma import gelu
from reference import silu

MEAN, CLS, LAST, RANK = 1, 2, 3, 4


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def slopes(heads):
    """Returns ALiBi's factor on the distance of each head."""
    power = 2 ** int(np.log2(heads))
    first = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    between = 2.0 ** (-4.0 / power * np.arange(1, 2 * (heads - power), 2))
    return np.concatenate([first, between])


def near(count, window):
    """Returns bool [count, count]: the tokens that each token sees."""
    distance = np.abs(np.arange(count)[:, None] - np.arange(count))
    return distance <= window // 2 if window else distance >= 0


class Pooled:
    """What embeddings add to a model with `states(tokens)`."""

    def vector(self, tokens):
        states = self.states(np.asarray(tokens))
        pooling = self._key("pooling_type", 0)
        if pooling == RANK:
            return self.scores(states)
        row = {MEAN: lambda: states.mean(axis=0), CLS: lambda: states[0], LAST: lambda: states[-1]}
        return self.dense(row[pooling]())

    def dense(self, x):
        for name in ("dense_2.weight", "dense_3.weight"):
            if name in self._weights:
                x = self._weights[name] @ x
        return x

    def scores(self, states):
        if self._prefix == "qwen3":
            return softmax(self._project("cls.output", states[-1]))[:1]
        modern = self._prefix == "modern-bert"
        x = self._project("cls", states.mean(axis=0) if modern else states[0])
        x = self._layer_norm(gelu(x), "cls.norm") if modern else np.tanh(x)
        return self._project("cls.output", x)[:1]

    def _layer_norm(self, x, name):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return x * self._weights[name + ".weight"] + self._weights.get(name + ".bias", 0.0)


class Bert(Pooled, reference.Decoder):
    def states(self, tokens):
        h = self._embed(tokens) + self._weights["token_types.weight"][0]
        if "position_embd.weight" in self._weights:
            h = h + self._weights["position_embd.weight"][:len(tokens)]
        h = self._layer_norm(h, "token_embd_norm")
        for layer in range(self.layers):
            h = self._layer(h, layer)
        return h

    def _layer(self, h, layer):
        block = f"blk.{layer}."
        y = self._layer_norm(h + self._bidirectional(block, h), block + "attn_output_norm")
        if block + "attn_norm_2.weight" in self._weights:
            y = self._layer_norm(y + h, block + "attn_norm_2")
        return self._layer_norm(y + self._ffn(block, y), block + "layer_output_norm")

    def _queries(self, block, h):
        if block + "attn_qkv.weight" in self._weights:
            parts = np.split(self._project(block + "attn_qkv", h), 3, axis=-1)
        else:
            parts = [self._project(block + name, h) for name in ("attn_q", "attn_k", "attn_v")]
        for i, name in enumerate(("attn_q_norm", "attn_k_norm")):
            if block + name + ".weight" in self._weights:
                parts[i] = self._layer_norm(parts[i], block + name)
        return [part.reshape(len(h), self.heads, -1) for part in parts]

    def _bidirectional(self, block, h):
        q, k, v = self._queries(block, h)
        if self._prefix not in ("bert", "jina-bert-v2"):
            q, k = (rope.rotate(x, self._freq, self._magnitude, False) for x in (q, k))
        distance = np.abs(np.arange(len(h))[:, None] - np.arange(len(h)))
        bias = slopes(self.heads) if self._prefix == "jina-bert-v2" else np.zeros(self.heads)
        out = np.empty_like(v)
        for head in range(self.heads):
            scores = q[:, head] @ k[:, head].T / np.sqrt(self.head_dim) - bias[head] * distance
            out[:, head] = softmax(scores) @ v[:, head]
        return self._project(block + "attn_output", out.reshape(len(h), -1))

    def _ffn(self, block, h):
        if block + "ffn_gate_inp.weight" in self._weights:
            return self._mixture(block, h)
        up = self._project(block + "ffn_up", h)
        if block + "ffn_gate.weight" in self._weights:
            activation = silu if self._prefix == "nomic-bert" else gelu
            up = activation(self._project(block + "ffn_gate", h)) * up
        else:
            up = gelu(up)
        return self._project(block + "ffn_down", up)

    def _mixture(self, block, h):
        p = softmax(self._project(block + "ffn_gate_inp", h))
        up, down = (self._weights[f"{block}ffn_{name}_exps.weight"] for name in ("up", "down"))
        out = np.zeros_like(h)
        for token, shares in enumerate(p):
            for expert in np.argsort(-shares, kind="stable")[:self.experts_used]:
                out[token] += shares[expert] * (down[expert] @ gelu(up[expert] @ h[token]))
        return out


class ModernBert(Pooled, reference.Decoder):
    def states(self, tokens):
        h = self._layer_norm(self._embed(tokens), "token_embd_norm")
        for layer in range(self.layers):
            block = f"blk.{layer}."
            x = self._layer_norm(h, block + "attn_norm") if layer else h
            h = h + self._bidirectional(block, x, layer)
            a, b = np.split(self._project(block + "ffn_up", self._layer_norm(h, block + "ffn_norm")), 2, axis=-1)
            activation = silu if self._key("hidden_activation", "gelu") == "silu" else gelu
            h = h + self._project(block + "ffn_down", activation(a) * b)
        return self._layer_norm(h, "output_norm")

    def _bidirectional(self, block, x, layer):
        window = self._key("attention.sliding_window", 0)
        windowed = bool(window) and layer % 3 != 0
        freq = rope.plain(self._key("rope.freq_base_swa", 10000.0), self.head_dim) if windowed else self._freq
        q, k, v = (part.reshape(len(x), self.heads, -1)
                   for part in np.split(self._project(block + "attn_qkv", x), 3, axis=-1))
        q, k = (rope.rotate(part, freq, 1.0, False) for part in (q, k))
        out = reference.attend(q, k, v, near(len(x), window if windowed else 0), 1 / np.sqrt(self.head_dim))
        return self._project(block + "attn_output", out.reshape(len(x), -1))


class GemmaEmbedding(Pooled, reference_gemma.Reference):
    def __init__(self, path):
        reference.Decoder.__init__(self, path)
        self.hidden_size = self._key("embedding_length")
        self.window = self._key("attention.sliding_window")
        self.windowed = [i % 6 < 5 for i in range(self.layers)]
        self.scale = 1 / np.sqrt(self.head_dim)
        self.score_cap = 0.0

    def states(self, tokens):
        h = self._embed(tokens)
        for layer in range(self.layers):
            h = self._layer(h, layer)
        return self._norm(h, "output_norm")

    def _seen(self, layer, count):
        return near(count, self.window if self.windowed[layer] else 0)


class Causal(Pooled, reference.Decoder):
    def states(self, tokens):
        h = self._embed(tokens)
        for layer in range(self.layers):
            h = self._layer(h, layer)
        return self._norm(h, "output_norm")


CLASSES = {"modern-bert": ModernBert, "gemma-embedding": GemmaEmbedding, "qwen3": Causal}


def load(path):
    """Returns the file's model, as the class of its architecture."""
    name = reference.GgufFile(path).metadata["general.architecture"]
    return CLASSES.get(name, Bert)(path)
