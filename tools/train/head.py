"""A draft head: one layer that predicts the token after the next one.

Slot p has the embedding of token p and the model's normed state of token p - 1,
both normed again, joined by one matrix. A layer like the model's own follows. Its
normed output gives token p + 1, by the model's output matrix, and takes the place
of the model's state to draft further.
Module names are those of the tensors of GGUF's block N, after the last layer.
"""

import dataclasses

import torch
from torch import nn
from torch.nn import functional

import llama


class NextN(nn.Module):
  """The tensors blk.N.nextn.*."""

  def __init__(self, config):
    super().__init__()
    self.enorm = llama.RmsNorm(config.width, config.eps)
    self.hnorm = llama.RmsNorm(config.width, config.eps)
    self.eh_proj = nn.Linear(2 * config.width, config.width, bias=False)
    self.shared_head_norm = llama.RmsNorm(config.width, config.eps)


class Head(nn.Module):
  """The tensors blk.N.*, for a model whose weights do not change. `hidden`: of its feed-forward network."""

  def __init__(self, model, hidden):
    super().__init__()
    config = dataclasses.replace(model.config, hidden=hidden)
    self.block = llama.Block(config)
    self.config = config
    self.nextn = NextN(config)
    self._model = [model]  # not a submodule
    with torch.no_grad():  # begins with the model's last layer, over its own state
      last = dict(model.blk[-1].state_dict())
      # Of its feed-forward network the part that says most.
      size = last["ffn_down.weight"].norm(dim=0) * last["ffn_up.weight"].norm(dim=1)
      kept = size.topk(hidden).indices
      last["ffn_gate.weight"] = last["ffn_gate.weight"][kept]
      last["ffn_up.weight"] = last["ffn_up.weight"][kept]
      last["ffn_down.weight"] = last["ffn_down.weight"][:, kept]
      self.block.load_state_dict(last)
      self.nextn.shared_head_norm.weight.copy_(model.output_norm.weight)
      half = torch.eye(config.width)
      scale = model.token_embd.weight.square().mean().sqrt()
      self.nextn.eh_proj.weight.copy_(torch.cat((half * scale, half), 1))
    self.register_buffer("_turn", llama.rotation(config), persistent=False)
    self.register_buffer("_mask", llama.visibility(config.context), persistent=False)

  def forward(self, ids, states):
    """ids [rows, tokens], states [rows, tokens, width] of the tokens before each ->
    normed states."""
    n = self.nextn
    embedded = self._model[0].token_embd(ids)
    x = n.eh_proj(torch.cat((n.enorm(embedded), n.hnorm(states)), -1))
    end = ids.shape[1]
    x = self.block(x, self._turn[:end], self._mask[:end, :end])
    return n.shared_head_norm(x)

  def logits(self, states):
    return functional.linear(states, self._model[0].token_embd.weight)

  def tensors(self):
    """The GGUF tensors: name -> f32 array."""
    prefix = f"blk.{self._model[0].config.layers}."
    named = [(name, value) for name, value in self.block.state_dict().items()]
    named += [("nextn." + name, value) for name, value in self.nextn.state_dict().items()]
    return {prefix + name: value.detach().float().cpu().numpy() for name, value in named}


def shifted(states):
  """The state of the token before each; zeros before the first."""
  return functional.pad(states[:, :-1], (0, 0, 1, 0))
