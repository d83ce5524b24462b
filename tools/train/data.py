"""Batches of stories: one story a row, with a weight for each target.

A row is <s>, a story of about the row's length, </s>, and padding of weight 0.
The words that decide an answer weigh more than the rest: they are a few in a
hundred tokens, and the model exists to predict them.
"""

import dataclasses
import random

import numpy

import spm
import story


@dataclasses.dataclass(frozen=True)
class Mix:
  """The kinds of stories in a stage of the training."""
  length: int                 # tokens of a row
  question_share: tuple       # share of questions in a story that has them: from, to
  plain: float                # share of stories without questions
  kinds: tuple = (6, 6)       # of facts in a story: from, to
  people: tuple = (2, 8)
  retold: bool = False        # no story: repeated bare facts
  other_forms: float = 0.0
  mention_rate: float = 0.15
  answer_weight: float = 5.0


class Stories:
  """An endless series of batches; the same seed gives the same batches."""

  def __init__(self, tokenizer, seed):
    self._tokenizer = tokenizer
    self._rng = random.Random(f"mix {seed}")
    self._generator = story.Generator(f"stories {seed}")

  def batch(self, mix, rows):
    """ids [rows, length + 1] (input and target in one) and target weights."""
    ids = numpy.full((rows, mix.length + 1), spm.EOS, numpy.int64)
    weights = numpy.zeros((rows, mix.length), numpy.float32)
    for row in range(rows):
      row_ids, row_weights = self._row(mix)
      n = min(len(row_ids), mix.length + 1)
      ids[row, :n] = row_ids[:n]
      weights[row, :n - 1] = row_weights[1:n]
    return ids, weights

  def _row(self, mix):
    if mix.retold:
      return self._encode(self._generator.retold(
          mix.length, self._rng.randint(*mix.kinds)), mix)
    if self._rng.random() < mix.plain:
      told = dict(length=mix.length, question_share=0.0, tale=True)
    else:
      told = dict(length=int(self._rng.uniform(0.85, 1.0) * (mix.length - 2)),
                  question_share=self._rng.uniform(*mix.question_share))
    drawn = self._generator.story(story.Spec(
        kinds=self._rng.randint(*mix.kinds), people=mix.people,
        mention_rate=mix.mention_rate, other_forms=mix.other_forms, **told))
    return self._encode(drawn.parts(), mix)

  def _encode(self, parts, mix):
    ids, weights = [spm.BOS], [0.0]
    for text, is_value in parts:
      if len(ids) > mix.length:
        break
      part = self._tokenizer.encode_part(text)
      ids += part
      weights += [mix.answer_weight if is_value else 1.0] * len(part)
    return ids + [spm.EOS], weights + [1.0]
