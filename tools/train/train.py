#!/usr/bin/python3
"""Trains the shipped models from nothing: vocabulary, weights, GGUF file.

  tools/train/train.py --out models/story.gguf
  tools/train/train.py --size draft --teacher models/story.gguf \\
      --out models/story-draft.gguf
  tools/train/train.py --size window --start models/story.gguf \\
      --out models/story-window.gguf
  tools/train/train.py --size hybrid --start models/story.gguf \\
      --out models/story-hybrid.gguf

Training data is drawn during the run; no story comes twice. Rows grow longer in
stages: on short rows with many questions the model learns within minutes to look
facts up in the story; longer rows teach it to do so over the whole context. With a
teacher, the loss includes the teacher's distribution, so that the small model learns
to predict the large one's output. A model that starts from another one has the last
stages alone, at a lower rate, and the other model as its teacher.

An interrupted run continues from the checkpoint next to the output.
"""

import argparse
import json
import os
import random
import time

import cpu  # pylint: disable=unused-import  (before torch)

import numpy
import torch
from torch.nn import functional

import bpe
import data
import export
import lfm2
import llama
import optim
import spm
import start
import story
from mixes import (BARE, DENSE, DENSER, DENSEST, LONG, LONGEST, MEDIUM, SHORT, TALES)

# (share of all tokens after which the stage ends, kinds of batches with odds).
# A run with a teacher needs the last stage only; a run with --start needs these.
RESUMED = (
    (0.70, ((DENSE, 2), (DENSER, 2), (DENSEST, 2), (SHORT, 1), (MEDIUM, 2), (LONG, 1),
            (LONGEST, 2))),
    (1.00, ((DENSER, 1), (SHORT, 1), (MEDIUM, 1), (TALES, 2), (LONG, 2), (LONGEST, 2))),
)
STAGES = (
    (0.06, ((BARE, 4), (SHORT, 1))),
    (0.22, ((BARE, 1), (DENSE, 2), (SHORT, 3), (MEDIUM, 1))),
    (0.35, ((DENSE, 3), (DENSER, 1), (SHORT, 2), (MEDIUM, 2), (LONG, 1))),
    (0.60, ((DENSE, 2), (DENSER, 2), (DENSEST, 2), (SHORT, 1), (MEDIUM, 2), (LONG, 1),
            (LONGEST, 1))),
    (0.77, ((DENSER, 1), (DENSEST, 1), (SHORT, 1), (MEDIUM, 3), (LONG, 2), (LONGEST, 2))),
    (1.00, ((SHORT, 1), (MEDIUM, 1), (TALES, 5), (LONG, 1), (LONGEST, 2))),
)

SIZES = {"main": llama.MAIN, "draft": llama.DRAFT, "window": llama.WINDOW,
         "hybrid": lfm2.HYBRID}


def rate(progress):
  """Learning rate factor: warm-up, plateau, straight line to zero."""
  return max(0.0, min(progress / 0.01 + 0.05, 1.0, (1 - progress) / 0.6))


def begin_at(model, other, tokenizer):
  """Gives `model` the weights of a trained llama of the same sizes."""
  if isinstance(model, lfm2.Lfm2):
    drawn = story.Generator("start").story(story.Spec(length=900, question_share=0.2))
    lfm2.from_llama(model, other, torch.tensor([spm.BOS] + tokenizer.encode(drawn.text())))
  else:
    model.load_state_dict(other.state_dict())


class Run:
  """One training run: the state that a checkpoint holds."""

  def __init__(self, args):
    self.args = args
    self.device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    shared = args.vocabulary or args.teacher or args.start
    self.tokenizer = export.load_tokenizer(shared) if shared else bpe.learn()
    self.model = export.make_model(SIZES[args.size])
    self.teacher = None
    if args.teacher or args.start:
      self.teacher = export.load_model(args.teacher or args.start)
    if args.start:
      begin_at(self.model, self.teacher, self.tokenizer)
    else:
      start.prepare(self.model)
    self.model.to(self.device)
    if self.teacher:
      self.teacher.to(self.device)
    self.optimizer = optim.Optimizer(self.model, args.matrix_lr, args.other_lr)
    self.step = self.tokens = 0
    self.seconds = 0.0
    self.sums = []
    self._checkpoint = args.out + ".checkpoint"
    if os.path.exists(self._checkpoint):
      self._load()

  def train(self):
    last = time.monotonic()
    while self.tokens < self.args.tokens:
      self._one_step()
      now = time.monotonic()
      self.seconds, last = self.seconds + now - last, now
      if self.step % 50 == 0:
        self._log()
      if self.step % 100 == 0:
        self._save()
    self._log()
    self._save()
    export.write_model(self.args.out, self.model, self.tokenizer,
                       self.args.name or f"kvcache story {self.args.size}")

  def _one_step(self):
    progress = self.tokens / self.args.tokens
    stages = RESUMED if self.args.start else STAGES[-1:] if self.teacher else STAGES
    _, mixes = next(stage for stage in stages if progress < stage[0])
    # Each step has its own seed, so that a resumed run sees the same rows.
    seed = f"{self.args.seed} {self.step}"
    rows, mix = random.Random(seed).choices(
        [batch for batch, _ in mixes], [odds for _, odds in mixes])[0]
    stories = data.Stories(self.tokenizer, seed)
    ids, weights = (torch.from_numpy(a).to(self.device)
                    for a in stories.batch(mix, rows))
    loss, stats = self._loss(ids, weights)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
    self.optimizer.step(rate(progress))
    self.step += 1
    self.tokens += rows * mix.length
    self.sums.append(stats)

  def _loss(self, ids, weights):
    logits = self.model(ids[:, :-1]).flatten(0, 1)
    targets, weights = ids[:, 1:].flatten(), weights.flatten()
    each = functional.cross_entropy(logits, targets, reduction="none")
    with torch.no_grad():
      value, rest = weights > 1, weights == 1
      right = logits.argmax(-1) == targets
      stats = [each[value].mean().item(), each[rest].mean().item(),
               right[value].float().mean().item()]
    if self.teacher is not None:
      each = 0.3 * each + 0.7 * self._distance(ids, logits)
    return (each * weights).sum() / weights.sum(), stats

  def _distance(self, ids, logits):
    """Cross entropy with the teacher's distribution, per token."""
    with torch.no_grad():
      aim = torch.softmax(self.teacher(ids[:, :-1]).flatten(0, 1), -1)
    return -(aim * torch.log_softmax(logits, -1)).sum(-1)

  def _log(self):
    if not self.sums:
      return
    # Batches of tales have no answers: their figures are NaN.
    value, rest, right = numpy.nanmean(self.sums, 0).tolist()
    self.sums = []
    line = dict(step=self.step, tokens=self.tokens, seconds=round(self.seconds),
                value_loss=round(value, 4), text_loss=round(rest, 4),
                value_right=round(right, 4))
    print(json.dumps(line), flush=True)

  def _save(self):
    new = self._checkpoint + ".new"
    torch.save(dict(model=self.model.state_dict(), step=self.step,
                    optimizer=self.optimizer.state(), tokens=self.tokens,
                    vocabulary=self.tokenizer.tokens,
                    seconds=self.seconds), new)
    os.replace(new, self._checkpoint)

  def _load(self):
    saved = torch.load(self._checkpoint, map_location=self.device)
    self.tokenizer = spm.Tokenizer(saved["vocabulary"][spm.FIRST_PIECE:], [])
    self.model.load_state_dict(saved["model"])
    self.optimizer.load_state(saved["optimizer"])
    self.step, self.tokens = saved["step"], saved["tokens"]
    self.seconds = saved["seconds"]


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--out", required=True, help="GGUF file to write")
  parser.add_argument("--size", choices=SIZES, default="main")
  parser.add_argument("--teacher", help="GGUF file of a model to imitate")
  parser.add_argument("--start", help="GGUF file of a model to start from and to imitate")
  parser.add_argument("--vocabulary", help="GGUF file of a model to share it with")
  parser.add_argument("--tokens", type=int, default=7_000_000)
  parser.add_argument("--seed", type=int, default=1)
  parser.add_argument("--threads", type=int, default=1)
  parser.add_argument("--matrix_lr", type=float, default=0.02)
  parser.add_argument("--other_lr", type=float, default=0.004)
  parser.add_argument("--name", help="general.name of the file")
  args = parser.parse_args()
  torch.set_num_threads(args.threads)
  torch.set_flush_denormal(True)
  Run(args).train()


if __name__ == "__main__":
  main()
