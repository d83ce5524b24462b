#!/usr/bin/python3
"""Trains a draft head for a trained model, and writes a file that has the head only.

  tools/train/train_head.py models/story.gguf --out models/story-head.gguf

The model's weights stay as they are. The head learns the model's own distribution of
the next token, from the model's states first and then from its own, as it drafts.
"""

import argparse
import json
import os
import time

import cpu  # pylint: disable=unused-import  (before torch)

import torch
from torch.nn import functional

import export
import gguf_file as gguf
import head as heads
import mixes
import optim
import train

# The weight of each step in the loss: the first sees the model's states, the others the head's own.
STEPS = (1.0, 0.8, 0.6, 0.4)


def steps_of(model, head, ids, count):
  """Yields, for each step of drafting, the head's logits and the model's, for the same tokens.

  Step k of slot p has read token p, and the state that step k - 1 left at slot p - 1."""
  with torch.no_grad():
    states = model.hidden(ids)
    aims = functional.linear(states, model.token_embd.weight)
  for step in range(count):
    states = head(ids, heads.shifted(states))
    # Slots before `step` have no state of that step.
    yield head.logits(states)[:, step + 1:], aims[:, step + 1:]


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("model", help="GGUF file of the model")
  parser.add_argument("--out", required=True, help="GGUF file to write")
  parser.add_argument("--hidden", type=int, default=128, help="of the head's feed-forward network")
  parser.add_argument("--tokens", type=int, default=1_500_000)
  parser.add_argument("--seed", type=int, default=1)
  parser.add_argument("--threads", type=int, default=1)
  parser.add_argument("--matrix_lr", type=float, default=0.01)
  parser.add_argument("--other_lr", type=float, default=0.002)
  args = parser.parse_args()
  torch.set_num_threads(args.threads)
  torch.set_flush_denormal(True)
  torch.manual_seed(args.seed)

  model = export.load_model(args.model)
  tokenizer = export.load_tokenizer(args.model)
  head = heads.Head(model, args.hidden)
  optimizer = optim.Optimizer(head, args.matrix_lr, args.other_lr)
  begin, tokens, step, sums = time.monotonic(), 0, 0, []
  while tokens < args.tokens:
    batch = mixes.batch_for_head(tokenizer, f"head {args.seed} {step}")
    ids, weights = (torch.from_numpy(array) for array in batch)
    ids, weights = ids[:, :-1], (weights > 0).float()
    loss, right = 0.0, []
    for k, (logits, aim) in enumerate(steps_of(model, head, ids, len(STEPS))):
      shares = weights[:, k + 1:]
      each = -(torch.softmax(aim, -1) * torch.log_softmax(logits, -1)).sum(-1)
      loss = loss + STEPS[k] * (each * shares).sum() / shares.sum()
      same = (logits.argmax(-1) == aim.argmax(-1)).float()
      right.append(((same * shares).sum() / shares.sum()).item())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    optimizer.step(train.rate(tokens / args.tokens))
    tokens, step = tokens + ids.numel(), step + 1
    sums.append(right)
    if step % 25 == 0 or tokens >= args.tokens:
      means = [round(sum(each) / len(sums), 4) for each in zip(*sums)]
      sums = []
      print(json.dumps(dict(step=step, tokens=tokens, seconds=round(time.monotonic() - begin),
                            right=means)), flush=True)
      write(args.out, model, head)


def write(path, model, head):
  """Writes the head's own file: the model's sizes, with one block more, and that block's tensors."""
  config = model.config
  metadata = {
      "general.architecture": gguf.string("llama"),
      "general.name": gguf.string("kvcache story head"),
      "general.license": gguf.string("MIT"),
      "general.quantization_version": gguf.u32(2),
      "llama.block_count": gguf.u32(config.layers + 1),
      "llama.nextn_predict_layers": gguf.u32(1),
      "llama.embedding_length": gguf.u32(config.width),
      "llama.feed_forward_length": gguf.u32(head.config.hidden),
  }
  gguf.write(path + ".new", metadata, head.tensors())
  os.replace(path + ".new", path)


if __name__ == "__main__":
  main()
