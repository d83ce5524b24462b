"""The llama architecture in PyTorch, as llama.cpp computes it.

RMSNorm, rotary positions on interleaved pairs (x[2i], x[2i+1]) over the whole
head, grouped-query attention, SwiGLU, and the embedding as output matrix.
Module names are those of GGUF tensors, so that exporting is a walk.
"""

import dataclasses

import torch
from torch import nn
from torch.nn import functional


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

  @property
  def head_size(self):
    return self.width // self.heads


MAIN = Config()
DRAFT = Config(width=128, layers=2, heads=4, kv_heads=2, hidden=256)


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
    # Query heads of one group are stacked along the queries.
    group = c.heads // c.kv_heads
    q = q.view(rows, length, c.kv_heads, group, c.head_size) * c.head_size ** -0.5
    q = q.permute(0, 2, 3, 1, 4).reshape(rows * c.kv_heads, group, length, -1)
    k = k.permute(0, 2, 3, 1).reshape(rows * c.kv_heads, c.head_size, -1)
    v = v.permute(0, 2, 1, 3).reshape(rows * c.kv_heads, -1, c.head_size)
    out = torch.cat([_attend(q[:, :, i:i + _CHUNK], k, v, mask[i:i + _CHUNK])
                     for i in range(0, length, _CHUNK)], 2)
    out = out.view(rows, c.kv_heads, group, length, -1)
    return self.attn_output(out.permute(0, 3, 1, 2, 4).reshape(x.shape))


def _attend(q, k, v, mask):
  """q [n, group, queries, size], k [n, size, keys], v [n, keys, size]; keys
  beyond the last query are left out, so their cost is not paid."""
  n, group, queries, size = q.shape
  keys = mask.shape[1] - int((mask[-1] < 0).sum())
  scores = torch.bmm(q.reshape(n, group * queries, size), k[:, :, :keys])
  scores = scores.view(n, group, queries, keys).add_(mask[:, :keys])
  weights = torch.softmax(scores, -1).view(n, group * queries, keys)
  return torch.bmm(weights, v[:, :keys]).view(n, group, queries, size)


class Llama(nn.Module):

  def __init__(self, config):
    super().__init__()
    self.config = config
    self.token_embd = nn.Embedding(config.vocab, config.width)
    self.blk = nn.ModuleList(Block(config) for _ in range(config.layers))
    self.output_norm = RmsNorm(config.width, config.eps)
    self._init_weights()
    angle = torch.arange(config.context).double()[:, None] * (
        config.rope_base ** (-torch.arange(0, config.head_size, 2).double()
                             / config.head_size))
    turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)
    self.register_buffer("_turn", turn[:, None, :], persistent=False)
    mask = torch.full((config.context, config.context), -1e9).triu(1)
    self.register_buffer("_mask", mask, persistent=False)

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
      x = block(x, self._turn[start:end], self._mask[start:end, :end],
                past.layers[i] if past is not None else None)
    if past is not None:
      past.length = end
    return self.output_norm(x)

  def forward(self, ids, past=None):
    """ids [rows, tokens] -> logits [rows, tokens, vocab]."""
    return functional.linear(self.hidden(ids, past), self.token_embd.weight)


class LayerPast:
  """Keys and values of one layer."""

  def __init__(self):
    self._k = self._v = None

  def append(self, k, v):
    if self._k is not None:
      k, v = torch.cat((self._k, k), 1), torch.cat((self._v, v), 1)
    self._k, self._v = k, v
    return k, v

  def copy(self):
    """Shares the tensors: appending never changes them."""
    other = LayerPast()
    other._k, other._v = self._k, self._v
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

