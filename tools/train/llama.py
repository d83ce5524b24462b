"""The llama architecture in PyTorch, as llama.cpp computes it.

RMSNorm, rotary positions on interleaved pairs (x[2i], x[2i+1]) over the whole
head, grouped-query attention, SwiGLU, and the embedding as output matrix. Layers
may see a window of the last tokens only.
Module names are those of GGUF tensors, so that exporting is a walk.
"""

import dataclasses

import torch
from torch import nn
from torch.nn import functional


_HIDDEN = -1e9
_CHUNK = 128  # queries at a time, so that scores stay in the cache


@dataclasses.dataclass(frozen=True)
class Config:
  vocab: int = 1024
  width: int = 256
  layers: int = 4
  heads: int = 8
  kv_heads: int = 4
  hidden: int = 512        # of the feed-forward network
  context: int = 1024
  rope_base: float = 10000.0
  eps: float = 1e-5
  window: int = 0          # tokens that a query of a windowed layer sees
  windowed: tuple = ()     # of each layer: whether it has a window; empty: none

  @property
  def head_size(self):
    return self.width // self.heads


MAIN = Config()
DRAFT = Config(width=128, layers=2, heads=4, kv_heads=2, hidden=256)
WINDOW = Config(window=64, windowed=(True, False, True, True))


class RmsNorm(nn.Module):

  def __init__(self, width, eps):
    super().__init__()
    self.weight = nn.Parameter(torch.ones(width))
    self._eps = eps

  def forward(self, x):
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps)
    return x * scale * self.weight


class Block(nn.Module):

  def __init__(self, config):
    super().__init__()
    c = self._config = config
    kv = c.kv_heads * c.head_size
    self.attn_norm = RmsNorm(c.width, c.eps)
    self.attn_q = nn.Linear(c.width, c.width, bias=False)
    self.attn_k = nn.Linear(c.width, kv, bias=False)
    self.attn_v = nn.Linear(c.width, kv, bias=False)
    self.attn_output = nn.Linear(c.width, c.width, bias=False)
    self.ffn_norm = RmsNorm(c.width, c.eps)
    self.ffn_gate = nn.Linear(c.width, c.hidden, bias=False)
    self.ffn_up = nn.Linear(c.width, c.hidden, bias=False)
    self.ffn_down = nn.Linear(c.hidden, c.width, bias=False)

  def forward(self, x, turn, mask, past=None):
    x = x + self._attention(self.attn_norm(x), turn, mask, past)
    y = self.ffn_norm(x)
    return x + self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y))

  def _attention(self, x, turn, mask, past):
    c = self._config
    rows, length, _ = x.shape
    q = _rotate(self.attn_q(x).view(rows, length, c.heads, c.head_size), turn)
    k = _rotate(self.attn_k(x).view(rows, length, c.kv_heads, c.head_size), turn)
    v = self.attn_v(x).view(rows, length, c.kv_heads, c.head_size)
    if past is not None:
      k, v = past.append(k, v)
    return self.attn_output(attention(q, k, v, mask))


def attention(q, k, v, mask):
  """q [rows, queries, heads, size], k and v [rows, keys, kv heads, size], mask
  [queries, keys] of 0 and a large negative number -> [rows, queries, width]."""
  rows, length, heads, size = q.shape
  kv_heads = k.shape[2]
  # Query heads of one group are stacked along the queries.
  group = heads // kv_heads
  q = q.view(rows, length, kv_heads, group, size) * size ** -0.5
  q = q.permute(0, 2, 3, 1, 4).reshape(rows * kv_heads, group, length, -1)
  k = k.permute(0, 2, 3, 1).reshape(rows * kv_heads, size, -1)
  v = v.permute(0, 2, 1, 3).reshape(rows * kv_heads, -1, size)
  out = torch.cat([_attend(q[:, :, i:i + _CHUNK], k, v, mask[i:i + _CHUNK])
                   for i in range(0, length, _CHUNK)], 2)
  out = out.view(rows, kv_heads, group, length, -1)
  return out.permute(0, 3, 1, 2, 4).reshape(rows, length, heads * size)


def _attend(q, k, v, mask):
  """q [n, group, queries, size], k [n, size, keys], v [n, keys, size]; keys
  that no query sees are left out at both ends, to save their cost."""
  n, group, queries, size = q.shape
  seen = (mask == 0).any(0).nonzero()
  first, end = int(seen[0]), int(seen[-1]) + 1
  scores = torch.bmm(q.reshape(n, group * queries, size), k[:, :, first:end])
  scores = scores.view(n, group, queries, -1).add_(mask[:, first:end])
  weights = torch.softmax(scores, -1).view(n, group * queries, -1)
  return torch.bmm(weights, v[:, first:end]).view(n, group, queries, size)


def rotation(config):
  """Complex factors [context, 1, head size / 2] that rotate pairs."""
  angle = torch.arange(config.context).double()[:, None] * (
      config.rope_base ** (-torch.arange(0, config.head_size, 2).double()
                           / config.head_size))
  turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)
  return turn[:, None, :]


def visibility(context, window=0):
  """Mask [context, context]: 0 for what a query sees."""
  mask = torch.full((context, context), _HIDDEN).triu(1)
  if window:
    mask += torch.full((context, context), _HIDDEN).tril(-window)
  return mask


class Llama(nn.Module):

  def __init__(self, config):
    super().__init__()
    self.config = config
    self.token_embd = nn.Embedding(config.vocab, config.width)
    self.blk = nn.ModuleList(Block(config) for _ in range(config.layers))
    self.output_norm = RmsNorm(config.width, config.eps)
    self._init_weights()
    self.register_buffer("_turn", rotation(config), persistent=False)
    for name, window in (("_mask", 0), ("_window", config.window)):
      self.register_buffer(name, visibility(config.context, window), persistent=False)

  def _init_weights(self):
    nn.init.normal_(self.token_embd.weight, std=0.02)
    out = (2 * self.config.layers) ** -0.5
    for name, weight in self.blk.named_parameters():
      if weight.dim() == 2:
        last = "attn_output" in name or "ffn_down" in name
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5 * (out if last else 1))

  def hidden(self, ids, past=None):
    """ids [rows, tokens] -> normed states [rows, tokens, width]."""
    start = past.length if past is not None else 0
    end = start + ids.shape[1]
    x = self.token_embd(ids)
    for i, block in enumerate(self.blk):
      mask = self._window if any(self.config.windowed[i:i + 1]) else self._mask
      x = block(x, self._turn[start:end], mask[start:end, :end],
                past.layers[i] if past is not None else None)
    if past is not None:
      past.length = end
    return self.output_norm(x)

  def forward(self, ids, past=None):
    """ids [rows, tokens] -> logits [rows, tokens, vocab]."""
    return functional.linear(self.hidden(ids, past), self.token_embd.weight)


class LayerPast:
  """The cache of one layer: keys and values, or a convolution's last inputs."""

  def __init__(self):
    self._k = self._v = None
    self._inputs = None

  def append(self, k, v):
    if self._k is not None:
      k, v = torch.cat((self._k, k), 1), torch.cat((self._v, v), 1)
    self._k, self._v = k, v
    return k, v

  def last(self, count):
    return None if self._inputs is None else self._inputs[:, -count:]

  def keep(self, inputs):
    self._inputs = inputs

  def copy(self):
    """Shares the tensors: appending never changes them."""
    other = LayerPast()
    other._k, other._v, other._inputs = self._k, self._v, self._inputs
    return other


class Past:
  """Keys and values of all layers, for decoding token by token."""

  def __init__(self, config):
    self.layers = [LayerPast() for _ in range(config.layers)]
    self.length = 0

  def copy(self):
    other = Past.__new__(Past)
    other.layers = [layer.copy() for layer in self.layers]
    other.length = self.length
    return other


def _rotate(x, turn):
  pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
  return torch.view_as_real(pairs * turn).flatten(-2)

