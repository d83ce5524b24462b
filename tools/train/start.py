"""A structured start: it lays out the look-up circuit, and training completes it.

From random weights a small model needs many millions of tokens before it looks
facts up by their subject; this is one sudden step, late in training. Therefore
the first two layers start near the circuit that such models find by themselves
(Olsson et al. 2022, "In-context learning and induction heads"):

  layer 0   head h attends a fixed number of tokens back (1 to 5) and writes the
            result into its own part of the residual stream;
  layer 1   a query whose subject is d tokens back finds keys whose subject is
            d + 1 tokens back, which are the values that follow the same words,
            and copies their token.

Everything else is random, and every weight is trained.
"""

import torch

_BACK = (1, 2, 3, 4, 5, 2, 3, 1)  # of the heads of layer 0
_SIGMA = 0.05                     # of the embeddings
_NOISE = 0.1                      # of other queries and keys, times width^-1/2
_PEAK = 8.0                       # score of each pair of a look-back head
_WRITE = 0.25                     # scale of layer 0's output
_MATCH = 1.9                      # gain of the queries and keys of layer 1


@torch.no_grad()
def prepare(model):
  """Overwrites the embeddings and the attention of the first two layers."""
  c = model.config
  _embeddings(model.token_embd.weight)
  written = torch.randn(c.width, c.heads, c.head_size) * c.width ** -0.5
  written[0] = 0
  _look_back(c, model.blk[0], written)
  _match(c, model.blk[1], written)


def _embeddings(weight):
  """Component 0 is the same for all tokens and as large as all the rest; the
  look-back heads read it. It adds the same to every logit, so it costs nothing."""
  weight.normal_(std=_SIGMA)
  weight[:, 0] = _SIGMA * weight.shape[1] ** 0.5


def _look_back(c, block, written):
  """Queries and keys are one vector, rotated by the distance to attend back."""
  block.attn_q.weight.normal_(std=_NOISE * c.width ** -0.5)
  block.attn_k.weight.normal_(std=_NOISE * c.width ** -0.5)
  q = block.attn_q.weight.view(c.heads, -1, 2, c.width)
  k = block.attn_k.weight.view(c.kv_heads, -1, 2, c.width)
  v = block.attn_v.weight.view(c.kv_heads, c.head_size, c.width)
  normed = (c.width / 2) ** 0.5    # component 0 after the norm
  size = (_PEAK * c.head_size ** 0.5) ** 0.5 / normed
  speeds = c.rope_base ** (-torch.arange(0, c.head_size, 2) / c.head_size)
  k[:, :, 0, 0], k[:, :, 1, 0] = size, 0
  for head in range(c.heads):
    angle = -speeds * _BACK[head]
    q[head, :, 0, 0] = size * torch.cos(angle)
    q[head, :, 1, 0] = size * torch.sin(angle)
  v[:] = v[0].clone()              # so that distances can be compared
  v[..., 0] = 0
  block.attn_output.weight.copy_(_WRITE * written.reshape(c.width, -1))


def _match(c, block, written):
  """Uses only the slowly rotating half of a head, which sees far back."""
  block.attn_q.weight.normal_(std=_NOISE * c.width ** -0.5)
  block.attn_k.weight.normal_(std=_NOISE * c.width ** -0.5)
  half, group = c.head_size // 2, c.heads // c.kv_heads
  q = block.attn_q.weight.view(c.heads, c.head_size, c.width)
  k = block.attn_k.weight.view(c.kv_heads, c.head_size, c.width)
  v = block.attn_v.weight.view(c.kv_heads, c.head_size, c.width)
  out = block.attn_output.weight.view(c.width, c.heads, c.head_size)
  for kv in range(c.kv_heads):
    back = kv + 1
    read_q, read_k = (written[:, _BACK.index(b), half:].t() for b in (back, back + 1))
    k[kv, half:] += _MATCH * read_k
    v[kv].normal_(std=c.width ** -0.5)
    v[kv, :, 0] = 0
    for head in range(kv * group, (kv + 1) * group):
      q[head, half:] += _MATCH * read_q
      out[:, head] = v[kv].t()
