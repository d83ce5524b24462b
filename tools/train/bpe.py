"""Learns the merges of the vocabulary from generated stories."""

import collections

import spm
import story
import words

VOCAB_SIZE = 1024

# Words that users type and the stories lack; they fill the rest of the vocabulary.
COMMON = (
    "the of and a to in is you that it he was for on are as with his they I at "
    "be this have from or one had by word but not what all were we when your can "
    "said there use an each which she do how their if will up other about out "
    "many then them these so some her would make like him into time has look two "
    "more write go see number no way could people my than first water been call "
    "who its now find long down day did get come made may part over new take only "
    "little work know place year live me back give most very after thing our just "
    "name good sentence man think say great where help through much before line "
    "right too mean old any same tell boy follow came want show also around form "
    "three small set put end does another well large must big even such because "
    "turn here why ask went men read need land home us move try kind hand picture "
    "again change off play away animal house point page letter mother answer found "
    "study still learn should world").split()


def alphabet():
  """Returns the single characters that are pieces: the space mark and printable ASCII."""
  return [spm.SPACE] + [chr(c) for c in range(0x21, 0x7F)]


def corpus_units(stories=4000, seed=0):
  """Returns the units of generated text, with their counts."""
  generator = story.Generator(f"vocabulary {seed}")
  counts = collections.Counter()
  for i in range(stories):
    share = 0.4 if i % 2 else 0.0
    drawn = generator.story(story.Spec(
        length=256, question_share=share, other_forms=0.25))
    text = " " + drawn.text()
    counts.update(spm.units(text.replace(" ", spm.SPACE)))
  return counts


def learn(size=VOCAB_SIZE):
  """Returns a Tokenizer of exactly `size` entries."""
  letters = alphabet()
  room = size - spm.FIRST_PIECE - len(letters)
  # The square root brings rare words' merges forward, so that all words fit.
  weights = {unit: count ** 0.5 for unit, count in corpus_units().items()}
  merges = _merges(weights, room, [])
  extra = {spm.SPACE + word: 1.0 / (1 + i) for i, word in enumerate(COMMON)}
  merges = _merges(extra, room, merges)
  return spm.Tokenizer(merges, letters)


def _merges(weights, max_count, known):
  """Returns `known` and new merges, at most `max_count`; stops when all units are whole."""
  merges = list(known)
  ranks = {piece: i for i, piece in enumerate(merges)}
  split = {unit: _apply(unit, ranks) for unit in weights}
  while len(merges) < max_count:
    pairs = collections.defaultdict(float)
    for unit, symbols in split.items():
      for left, right in zip(symbols, symbols[1:]):
        pairs[left + right] += weights[unit]
    if not pairs:
      break
    best = max(sorted(pairs), key=pairs.get)
    ranks[best] = len(merges)
    merges.append(best)
    split = {unit: _apply(unit, ranks) if best in unit else symbols
             for unit, symbols in split.items()}
  return merges


def _apply(unit, ranks):
  symbols = list(unit)
  while True:
    found = [(ranks[a + b], i) for i, (a, b) in enumerate(zip(symbols, symbols[1:]))
             if a + b in ranks]
    if not found:
      return symbols
    i = min(found)[1]
    symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]


def story_words():
  """Returns every word of the lists, for checks."""
  lists = (words.NAMES, words.COLORS, words.THINGS, words.FOODS, words.HOMES,
           words.ITEMS, words.ANIMALS, words.JOBS)
  return sorted({word for entries in lists for word in entries})
