"""Vision towers in float64, from the published definitions: pixels of a resized picture -> embeddings.

Written apart from src/vision: one function for each family, over all patches at once, with masks.
Sources: transformers' modeling files of each model; names of tensors as llama.cpp writes them.
"""

import numpy as np

from gguf_file import GgufFile


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    return rms(x - x.mean(-1, keepdims=True), weight, eps) + bias


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Tower:
    def __init__(self, path):
        self.file = GgufFile(path)
        self.names = set(self.file.tensors)
        self.patch = self.key("patch_size")
        self.width = self.key("embedding_length")
        self.heads = self.key("attention.head_count")
        self.layers = self.key("block_count")
        self.eps = self.key("attention.layer_norm_epsilon")

    def key(self, name, otherwise=None):
        return self.file.metadata.get("clip.vision." + name, otherwise)

    def tensor(self, name):
        return self.file.tensor(name)

    def linear(self, x, name):
        y = x @ self.tensor(name + ".weight").T
        return y + self.tensor(name + ".bias") if name + ".bias" in self.names else y

    def layer_norm(self, x, name):
        return layer_norm(x, self.tensor(name + ".weight"), self.tensor(name + ".bias"), self.eps)

    def patches(self, rgb):
        """[rows, columns, 3 * p * p] of rgb [height, width, 3]."""
        mean, deviation = np.array(self.key("image_mean")), np.array(self.key("image_std"))
        x = (rgb.astype(np.float64) / 255 - mean) / deviation
        p = self.patch
        rows, columns = rgb.shape[0] // p, rgb.shape[1] // p
        x = x.reshape(rows, p, columns, p, 3).transpose(0, 2, 4, 1, 3)
        return x.reshape(rows, columns, 3 * p * p)

    def kernel(self, x, name):
        return x @ self.tensor(name).reshape(self.width, -1).T

    def attention(self, h, prefix, rotate=lambda x: x, mask=None):
        count, dim = len(h), self.width // self.heads
        if prefix + "attn_qkv.weight" in self.names:
            q, k, v = np.split(self.linear(h, prefix + "attn_qkv"), 3, axis=-1)
        else:
            q, k, v = (self.linear(h, prefix + name) for name in ("attn_q", "attn_k", "attn_v"))
        q, k, v = (x.reshape(count, self.heads, dim).transpose(1, 0, 2) for x in (q, k, v))
        scores = rotate(q) @ rotate(k).transpose(0, 2, 1) / np.sqrt(dim)
        if mask is not None:
            scores = np.where(mask, scores, -np.inf)
        out = softmax(scores) @ v
        return self.linear(out.transpose(1, 0, 2).reshape(count, -1), prefix + "attn_out")

    def plain_ffn(self, h, prefix, up="ffn_up", down="ffn_down"):
        if self.tensor(prefix + up + ".weight").shape[0] == self.width:
            up, down = down, up
        return self.linear(gelu(self.linear(h, prefix + up)), prefix + down)


def gemma3(tower, rgb):
    patches = tower.patches(rgb)
    rows, columns = patches.shape[:2]
    x = tower.kernel(patches, "v.patch_embd.weight") + tower.tensor("v.patch_embd.bias")
    x = x.reshape(rows * columns, -1) + tower.tensor("v.position_embd.weight")
    for i in range(tower.layers):
        prefix = f"v.blk.{i}."
        x = x + tower.attention(tower.layer_norm(x, prefix + "ln1"), prefix)
        x = x + tower.plain_ffn(tower.layer_norm(x, prefix + "ln2"), prefix)
    x = tower.layer_norm(x, "v.post_ln")
    merge = tower.key("projector.scale_factor", 4)
    x = x.reshape(rows // merge, merge, columns // merge, merge, -1).mean((1, 3))
    x = rms(x.reshape(-1, tower.width), tower.tensor("mm.soft_emb_norm.weight"), tower.eps)
    return x @ tower.tensor("mm.input_projection.weight")


FAMILIES = {"gemma3": gemma3}


def embeddings(path, rgb):
    tower = Tower(path)
    return FAMILIES[tower.file.metadata["clip.projector_type"]](tower, rgb)
