"""The lfm2 architecture in PyTorch: short convolutions alternating with attention.

Layers with a convolution gate its input and output; it sees a few tokens back:

  b, c, x = in_proj(norm(h));  y[t] = sum_j conv[:, j] * (b * x)[t - taps + 1 + j]
  h += out_proj(c * y)

Layers with attention norm each head's query and key and rotate its halves, pairs
(x[i], x[i + size / 2]). Everything else is llama's (`llama.py`). Module names
are those of GGUF tensors.

Source: Liquid AI's LFM2 as published in Hugging Face's modeling_lfm2.
"""

import dataclasses

import torch
from torch import nn
from torch.nn import functional

import llama


@dataclasses.dataclass(frozen=True)
class Config(llama.Config):
  taps: int = 6                                   # tokens that a convolution sees
  attention: tuple = (False, True, False, True)   # of each layer; False: a convolution


HYBRID = Config()


class ShortConv(nn.Module):

  def __init__(self, config):
    super().__init__()
    width, taps = config.width, config.taps
    self.in_proj = nn.Linear(width, 3 * width, bias=False)
    self.conv = Taps(width, taps)
    self.out_proj = nn.Linear(width, width, bias=False)

  def forward(self, x, past):
    before, after, x = self.in_proj(x).chunk(3, -1)
    x = before * x
    taps = self.conv.weight.shape[1]
    kept = past.last(taps - 1) if past is not None else None
    if kept is None:
      kept = x.new_zeros(x.shape[0], taps - 1, x.shape[2])
    seen = torch.cat((kept, x), 1)
    if past is not None:
      past.keep(seen)
    y = functional.conv1d(seen.transpose(1, 2), self.conv.weight[:, None], groups=x.shape[2])
    return self.out_proj(after * y.transpose(1, 2))


class Taps(nn.Module):
  """Weights [width, taps], the oldest token's first."""

  def __init__(self, width, taps):
    super().__init__()
    self.weight = nn.Parameter(torch.zeros(width, taps))


class Block(nn.Module):

  def __init__(self, config, has_attention):
    super().__init__()
    c = self._config = config
    kv = c.kv_heads * c.head_size
    self.attn_norm = llama.RmsNorm(c.width, c.eps)
    self.has_attention = has_attention
    if has_attention:
      self.attn_q = nn.Linear(c.width, c.width, bias=False)
      self.attn_k = nn.Linear(c.width, kv, bias=False)
      self.attn_v = nn.Linear(c.width, kv, bias=False)
      self.attn_q_norm = llama.RmsNorm(c.head_size, c.eps)
      self.attn_k_norm = llama.RmsNorm(c.head_size, c.eps)
      self.attn_output = nn.Linear(c.width, c.width, bias=False)
    else:
      self.shortconv = ShortConv(config)
    self.ffn_norm = llama.RmsNorm(c.width, c.eps)
    self.ffn_gate = nn.Linear(c.width, c.hidden, bias=False)
    self.ffn_up = nn.Linear(c.width, c.hidden, bias=False)
    self.ffn_down = nn.Linear(c.hidden, c.width, bias=False)

  def forward(self, x, turn, mask, past=None):
    y = self.attn_norm(x)
    x = x + (self._attention(y, turn, mask, past) if self.has_attention
             else self.shortconv(y, past))
    y = self.ffn_norm(x)
    return x + self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y))

  def _attention(self, x, turn, mask, past):
    c = self._config
    rows, length, _ = x.shape
    q = self.attn_q(x).view(rows, length, c.heads, c.head_size)
    k = self.attn_k(x).view(rows, length, c.kv_heads, c.head_size)
    q, k = _rotate(self.attn_q_norm(q), turn), _rotate(self.attn_k_norm(k), turn)
    v = self.attn_v(x).view(rows, length, c.kv_heads, c.head_size)
    if past is not None:
      k, v = past.append(k, v)
    return self.attn_output(llama.attention(q, k, v, mask))


class Lfm2(nn.Module):

  def __init__(self, config):
    super().__init__()
    self.config = config
    self.token_embd = nn.Embedding(config.vocab, config.width)
    self.blk = nn.ModuleList(Block(config, has) for has in config.attention)
    self.token_embd_norm = llama.RmsNorm(config.width, config.eps)
    self.register_buffer("_turn", llama.rotation(config), persistent=False)
    self.register_buffer("_mask", llama.visibility(config.context), persistent=False)

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
    return self.token_embd_norm(x)

  def forward(self, ids, past=None):
    """ids [rows, tokens] -> logits [rows, tokens, vocab]."""
    return functional.linear(self.hidden(ids, past), self.token_embd.weight)


def _rotate(x, turn):
  """The same rotation as llama's, of halves instead of neighbours."""
  half = x.shape[-1] // 2
  pairs = torch.complex(x[..., :half], x[..., half:]) * turn
  return torch.cat((pairs.real, pairs.imag), -1)


@torch.no_grad()
def from_llama(model, teacher, ids):
  """Starts `model` from `teacher`, a trained llama of the same sizes; `ids` is some of
  its text.

  The teacher's layer 0 has heads that attend a few tokens back, whatever these are.
  Here taps do the same with the head's own values, between open gates. Attention
  keeps its matrices, with halves in place of neighbours; its norms have the gain of
  the teacher's queries and keys. Other convolutions start with zero output.
  """
  c = model.config
  own, other = model.state_dict(), teacher.state_dict()
  for name in own:
    if name in other and not name.endswith(("attn_q.weight", "attn_k.weight")):
      own[name].copy_(other[name])
  own["token_embd_norm.weight"].copy_(other["output_norm.weight"])
  for i, block in enumerate(model.blk):
    if block.has_attention:
      _halves(c, block, teacher.blk[i])
    elif i == 0:
      _look_back(c, block.shortconv, teacher, ids)
    else:
      _silent(c, block.shortconv)


def _halves(c, block, source):
  """Row 2i of a head becomes row i, row 2i + 1 row i + size / 2."""
  for name, heads in (("attn_q", c.heads), ("attn_k", c.kv_heads)):
    rows = getattr(source, name).weight.view(heads, c.head_size // 2, 2, c.width)
    weight = rows.transpose(1, 2).reshape(-1, c.width)
    getattr(block, name).weight.copy_(weight)
    # Normed inputs have unit mean square, so the rows' size is the head's size.
    gain = (weight.square().sum(1) * source.attn_norm.weight.square().mean()).mean().sqrt()
    getattr(block, name + "_norm").weight.fill_(gain.item())


def _look_back(c, conv, teacher, ids):
  source = teacher.blk[0]
  group = c.heads // c.kv_heads
  values = source.attn_v.weight.view(c.kv_heads, c.head_size, c.width)
  before, after, x = conv.in_proj.weight.chunk(3, 0)
  x.copy_(values.repeat_interleave(group, 0).reshape(c.width, c.width))
  # The common component of all tokens' normed embeddings opens the gates.
  normed = source.attn_norm(teacher.token_embd(ids))
  common = normed.mean(0)
  for gate in (before, after):
    gate.copy_((common / (normed @ common).mean()).expand(c.width, -1))
  shares = _shares_by_distance(c, source, normed)
  conv.conv.weight.copy_(shares.flip(1).repeat_interleave(c.head_size, 0))
  conv.out_proj.weight.copy_(source.attn_output.weight)


def _shares_by_distance(c, block, normed):
  """Returns [heads, taps]: a head's mean attention weight 0, 1, ... tokens back."""
  turn = llama.rotation(c)[:c.taps, 0]
  pairs = lambda y, heads: torch.view_as_complex(
      y.view(len(normed), heads, c.head_size // 2, 2))
  q = pairs(block.attn_q(normed), c.heads)
  k = pairs(block.attn_k(normed), c.kv_heads).repeat_interleave(c.heads // c.kv_heads, 1)
  count = len(normed) - c.taps + 1   # queries with that many tokens before them
  scores = torch.stack([
      (q[-count:] * turn[j] * k[c.taps - 1 - j:][:count].conj()).real.sum(-1)
      for j in range(c.taps)], -1)
  return torch.softmax(scores * c.head_size ** -0.5, -1).mean(0)


def _silent(c, conv):
  conv.in_proj.weight.normal_(std=c.width ** -0.5)
  conv.conv.weight.normal_(std=c.taps ** -0.5)
  conv.out_proj.weight.zero_()
