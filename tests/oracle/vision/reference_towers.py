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


def silu(x):
    return x / (1 + np.exp(-x))


def axes(rows, columns):
    """The row and the column of each patch, in the order of text."""
    y, x = np.mgrid[:rows, :columns]
    return y.ravel(), x.ravel()


def rotate_halves(x, angles):
    """Rotates pairs (i, i + half) of x [heads, patches, dim] by angles [patches, dim / 2]."""
    a, b = np.split(x, 2, axis=-1)
    c, s = np.cos(angles), np.sin(angles)
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def rotate_pairs(x, angles):
    """The same for neighbours (2 i, 2 i + 1)."""
    a, b = x[..., 0::2], x[..., 1::2]
    c, s = np.cos(angles), np.sin(angles)
    return np.stack([a * c - b * s, b * c + a * s], axis=-1).reshape(x.shape)


def qwen_rotation(tower, rows, columns):
    dim = tower.width // tower.heads
    frequencies = 10000.0 ** (-np.arange(0, dim // 2, 2) / (dim // 2))
    y, x = axes(rows, columns)
    angles = np.concatenate([np.outer(y, frequencies), np.outer(x, frequencies)], axis=-1)
    return lambda heads: rotate_halves(heads, angles)


def blocks(x, rows, columns, merge):
    """[tokens, merge * merge * width] of x [rows * columns, width]: (dy, dx, channel)."""
    x = x.reshape(rows // merge, merge, columns // merge, merge, -1).transpose(0, 2, 1, 3, 4)
    return x.reshape((rows // merge) * (columns // merge), -1)


def two_frames(tower, patches):
    x = sum(tower.kernel(patches, "v.patch_embd.weight" + end) for end in ("", ".1"))
    return x.reshape(-1, tower.width)


def merger(tower, x, first, second):
    return tower.linear(gelu(tower.linear(x, first)), second)


def gated_ffn(tower, h, prefix):
    hidden = silu(tower.linear(h, prefix + "ffn_gate")) * tower.linear(h, prefix + "ffn_up")
    return tower.linear(hidden, prefix + "ffn_down")


def qwen25vl(tower, rgb):
    patches = tower.patches(rgb)
    rows, columns = patches.shape[:2]
    merge = tower.key("spatial_merge_size", 2)
    x = two_frames(tower, patches)
    rotate = qwen_rotation(tower, rows, columns)
    side = 112 // tower.patch // merge * merge
    y, c = axes(rows, columns)
    window = (y // side) * 1000 + c // side
    same = window[:, None] == window[None, :]
    for i in range(tower.layers):
        prefix = f"v.blk.{i}."
        mask = same if (i + 1) % tower.key("n_wa_pattern") != 0 else None
        h = rms(x, tower.tensor(prefix + "ln1.weight"), tower.eps)
        x = x + tower.attention(h, prefix, rotate, mask)
        x = x + gated_ffn(tower, rms(x, tower.tensor(prefix + "ln2.weight"), tower.eps), prefix)
    x = rms(x, tower.tensor("v.post_ln.weight"), tower.eps)
    return merger(tower, blocks(x, rows, columns, merge), "mm.0", "mm.2")


def interpolated(table, rows, columns):
    """Bilinear, the corners of both grids at the same places: [rows * columns, width]."""
    side = int(np.sqrt(len(table)))
    table = table.reshape(side, side, -1)

    def along(count):
        at = np.linspace(0, side - 1, count)
        low = np.floor(at).astype(int)
        weights = np.zeros((count, side))
        weights[np.arange(count), low] = 1 - (at - low)
        weights[np.arange(count), np.minimum(low + 1, side - 1)] += at - low
        return weights

    out = np.einsum("ra,cb,abw->rcw", along(rows), along(columns), table)
    return out.reshape(rows * columns, -1)


def qwen3vl(tower, rgb):
    patches = tower.patches(rgb)
    rows, columns = patches.shape[:2]
    merge = tower.key("spatial_merge_size", 2)
    x = two_frames(tower, patches) + tower.tensor("v.patch_embd.bias")
    x = x + interpolated(tower.tensor("v.position_embd.weight"), rows, columns)
    rotate = qwen_rotation(tower, rows, columns)
    deep = []
    for i in range(tower.layers):
        prefix = f"v.blk.{i}."
        x = x + tower.attention(tower.layer_norm(x, prefix + "ln1"), prefix, rotate)
        x = x + tower.plain_ffn(tower.layer_norm(x, prefix + "ln2"), prefix)
        if tower.key("is_deepstack_layers")[i]:
            name = f"v.deepstack.{i}."
            h = tower.layer_norm(blocks(x, rows, columns, merge), name + "norm")
            deep.append(merger(tower, h, name + "fc1", name + "fc2"))
    x = blocks(tower.layer_norm(x, "v.post_ln"), rows, columns, merge)
    return np.concatenate([merger(tower, x, "mm.0", "mm.2"), *deep], axis=-1)


def pixtral(tower, rgb):
    patches = tower.patches(rgb)
    rows, columns = patches.shape[:2]
    merge = tower.key("spatial_merge_size", 1)
    x = tower.kernel(patches, "v.patch_embd.weight").reshape(rows * columns, -1)
    x = rms(x, tower.tensor("v.pre_ln.weight"), tower.eps)
    dim = tower.width // tower.heads
    frequencies = 10000.0 ** (-np.arange(0, dim, 2) / dim)
    y, c = axes(rows, columns)
    angles = np.concatenate([np.outer(y, frequencies[0::2]), np.outer(c, frequencies[1::2])],
                            axis=-1)
    for i in range(tower.layers):
        prefix = f"v.blk.{i}."
        h = rms(x, tower.tensor(prefix + "ln1.weight"), tower.eps)
        x = x + tower.attention(h, prefix, lambda heads: rotate_pairs(heads, angles))
        x = x + gated_ffn(tower, rms(x, tower.tensor(prefix + "ln2.weight"), tower.eps), prefix)
    if merge > 1:
        x = rms(x, tower.tensor("mm.input_norm.weight"), tower.eps)
        x = blocks(x, rows, columns, merge).reshape(-1, merge * merge, tower.width)
        x = tower.linear(x.transpose(0, 2, 1).reshape(len(x), -1), "mm.patch_merger")
    x = merger(tower, x, "mm.1", "mm.2")
    lines = x.reshape(rows // merge, columns // merge, -1)
    row_break = tower.tensor("v.token_embd.img_break")
    out = [lines[0]]
    for line in lines[1:]:
        out += [row_break[None], line]
    return np.concatenate(out)


def gemma4(tower, rgb):
    patches = 2 * tower.patches(rgb) - 1
    rows, columns = patches.shape[:2]
    y, c = axes(rows, columns)
    tables = tower.tensor("v.position_embd.weight")
    x = tower.kernel(patches, "v.patch_embd.weight").reshape(rows * columns, -1)
    x = x + tables[0][c] + tables[1][y]
    dim = tower.width // tower.heads
    frequencies = 100.0 ** (-np.arange(0, dim // 2, 2) / (dim // 2))

    def rotate(heads):
        first, second = np.split(heads, 2, axis=-1)
        return np.concatenate([rotate_halves(first, np.outer(c, frequencies)),
                               rotate_halves(second, np.outer(y, frequencies))], axis=-1)

    def linear(h, name):
        limits = [tower.tensor(name + end)[0] if name + end in tower.names else sign * np.inf
                  for end, sign in ((".input_min", -1), (".input_max", 1), (".output_min", -1),
                                    (".output_max", 1))]
        return np.clip(tower.linear(np.clip(h, *limits[:2]), name), *limits[2:])

    def norm(h, name):
        return rms(h, tower.tensor(name + ".weight") if name else 1.0, tower.eps)

    for i in range(tower.layers):
        prefix = f"v.blk.{i}."
        h = norm(x, prefix + "ln1")
        q, k, v = (linear(h, prefix + name).reshape(len(h), tower.heads, dim).transpose(1, 0, 2)
                   for name in ("attn_q", "attn_k", "attn_v"))
        q, k, v = norm(q, prefix + "attn_q_norm"), norm(k, prefix + "attn_k_norm"), norm(v, "")
        out = softmax(rotate(q) @ rotate(k).transpose(0, 2, 1)) @ v
        out = linear(out.transpose(1, 0, 2).reshape(len(h), -1), prefix + "attn_out")
        x = x + norm(out, prefix + "attn_post_norm")
        h = norm(x, prefix + "ln2")
        hidden = gelu(linear(h, prefix + "ffn_gate")) * linear(h, prefix + "ffn_up")
        x = x + norm(linear(hidden, prefix + "ffn_down"), prefix + "ffn_post_norm")
    merge = tower.key("projector.scale_factor", 3)
    x = blocks(x, rows, columns, merge).reshape(-1, merge * merge, tower.width).mean(1)
    x = x * np.sqrt(tower.width)
    x = (x - tower.tensor("v.std_bias")) * tower.tensor("v.std_scale")
    return norm(x, "") @ tower.tensor("mm.input_projection.weight").T


FAMILIES = {"gemma3": gemma3, "qwen2.5vl_merger": qwen25vl, "qwen3vl_merger": qwen3vl,
            "pixtral": pixtral, "gemma4v": gemma4}


def embeddings(path, rgb):
    tower = Tower(path)
    return FAMILIES[tower.file.metadata["clip.projector_type"]](tower, rgb)
