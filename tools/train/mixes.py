"""The kinds of batches that the models see in training."""

import random

from data import Mix, Stories

# Rows of a batch and what they hold.
BARE = (20, Mix(96, (0, 0), plain=0, retold=True, kinds=(1, 1),
                answer_weight=10))
DENSE = (10, Mix(256, (0, 0), plain=0, retold=True, kinds=(1, 4)))
DENSER = (5, Mix(512, (0, 0), plain=0, retold=True, kinds=(2, 6)))
DENSEST = (3, Mix(1023, (0, 0), plain=0, retold=True, kinds=(3, 6)))
SHORT = (18, Mix(112, (0.45, 0.6), plain=0.02, kinds=(1, 3), people=(3, 4),
                 answer_weight=10))
MEDIUM = (10, Mix(256, (0.3, 0.6), plain=0.3, kinds=(1, 6)))
TALES = (10, Mix(256, (0, 0), plain=1))
LONG = (6, Mix(512, (0.15, 0.5), plain=0, kinds=(2, 6)))
LONGEST = (3, Mix(1023, (0.05, 0.4), plain=0, kinds=(4, 6)))

# A draft head's, with odds.
OF_HEADS = ((DENSER, 1), (SHORT, 1), (MEDIUM, 2), (TALES, 3), (LONG, 1), (LONGEST, 1))


def batch_for_head(tokenizer, seed):
  """Returns the ids and target weights of a batch; the same seed gives the same batch."""
  rows, mix = random.Random(seed).choices([batch for batch, _ in OF_HEADS],
                                          [odds for _, odds in OF_HEADS])[0]
  return Stories(tokenizer, seed).batch(mix, rows)
