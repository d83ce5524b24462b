"""The SentencePiece-style BPE vocabulary and its encoder.

Same algorithm as llama.cpp's "llama" tokenizer: the text gets a leading space,
spaces become U+2581, every character is a symbol, and then, again and again,
that adjacent pair is merged whose joined text is the piece with the highest
score (the leftmost of equals). What is no piece at the end becomes bytes.

Ids: 0 <unk>, 1 <s>, 2 </s>, 3..258 the bytes, then single characters and
merged pieces. A merged piece's score is minus its rank; single characters rank
last, as nothing is merged into them.
"""

import re

UNK, BOS, EOS = 0, 1, 2
FIRST_BYTE = 3
FIRST_PIECE = FIRST_BYTE + 256
SPACE = "\u2581"

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # GGUF token types

# Pieces never reach over these borders, so text can be encoded word by word.
_UNIT = re.compile(SPACE + r"?[A-Za-z]+|'s[A-Za-z]*|.", re.DOTALL)


def units(text):
  """Splits escaped text where no piece may cross."""
  return _UNIT.findall(text)


class Tokenizer:
  """A vocabulary with its encoder and decoder."""

  def __init__(self, merges, alphabet):
    """merges: pieces in the order in which they were learned."""
    self.tokens = ["<unk>", "<s>", "</s>"]
    self.tokens += [f"<0x{b:02X}>" for b in range(256)]
    self.types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    self.tokens += list(merges) + list(alphabet)
    self.types += [NORMAL] * (len(self.tokens) - FIRST_PIECE)
    self.scores = [0.0] * FIRST_PIECE
    self.scores += [-float(i) for i in range(len(self.tokens) - FIRST_PIECE)]
    self._ids = {piece: i for i, piece in enumerate(self.tokens)
                 if i >= FIRST_PIECE}
    self._cache = {}

  def __len__(self):
    return len(self.tokens)

  def encode(self, text):
    """Ids without <s>."""
    return self.encode_part(" " + text) if text else []

  def encode_part(self, text):
    """Ids of text that continues other text: no space is put in front.

    Equal to that part of the whole text's ids if no unit (see `units`) crosses
    the border.
    """
    ids = []
    for unit in units(text.replace(" ", SPACE)):
      found = self._cache.get(unit)
      if found is None:
        found = self._cache[unit] = self._merge(list(unit))
      ids += found
    return ids

  def _merge(self, symbols):
    while True:
      best = None
      for i in range(len(symbols) - 1):
        rank = self._ids.get(symbols[i] + symbols[i + 1])
        if rank is not None and (best is None or rank < best[0]):
          best = (rank, i)
      if best is None:
        break
      i = best[1]
      symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]
    return [i for symbol in symbols for i in self._symbol_ids(symbol)]

  def _symbol_ids(self, symbol):
    if symbol in self._ids:
      return [self._ids[symbol]]
    return [FIRST_BYTE + b for b in symbol.encode("utf-8", "surrogatepass")]

  def decode(self, ids):
    """Text of the ids; the space that `encode` put in front stays."""
    out = b""
    for i in ids:
      if self.types[i] == BYTE:
        out += bytes([i - FIRST_BYTE])
      elif self.types[i] == NORMAL:
        out += self.tokens[i].replace(SPACE, " ").encode()
    return out.decode("utf-8", "replace")
