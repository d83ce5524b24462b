"""Checks of the vocabulary, its encoder and the training rows."""

import random
import unittest

import bpe
import data
import spm
import story


class TokenizerTest(unittest.TestCase):

  @classmethod
  def setUpClass(cls):
    cls.tokenizer = bpe.learn()

  def test_layout(self):
    tokens = self.tokenizer.tokens
    self.assertEqual(len(tokens), 1024)
    self.assertEqual(len(set(tokens)), 1024)
    self.assertEqual(tokens[:4], ["<unk>", "<s>", "</s>", "<0x00>"])
    self.assertEqual(tokens[258], "<0xFF>")

  def test_every_piece_is_reached_through_pieces(self):
    for i, token in enumerate(self.tokenizer.tokens[spm.FIRST_PIECE:]):
      text = token.replace(spm.SPACE, " ")
      self.assertEqual(self.tokenizer.encode_part(text), [spm.FIRST_PIECE + i])

  def test_story_words_are_one_token(self):
    for word in bpe.story_words():
      self.assertEqual(len(self.tokenizer.encode(word)), 1, word)

  def test_stories_have_one_token_per_word(self):
    generator = story.Generator("test")
    for _ in range(50):
      text = generator.story(story.Spec(length=300, question_share=0.4)).text()
      self.assertEqual(len(self.tokenizer.encode(text)), story.count_tokens(text))

  def test_round_trip(self):
    rng = random.Random(3)
    pool = "abcXYZ  \n\t.,'s09\u00e9\u00fc\u4e2d\U0001f600<>_-"
    for _ in range(500):
      text = "".join(rng.choice(pool) for _ in range(rng.randrange(1, 40)))
      self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(text)), " " + text)

  def test_unknown_characters_become_bytes(self):
    self.assertEqual(self.tokenizer.encode_part("\u00e9"),
                     [spm.FIRST_BYTE + 0xC3, spm.FIRST_BYTE + 0xA9])

  def test_parts_encode_as_the_whole(self):
    generator = story.Generator("test")
    for _ in range(100):
      drawn = generator.story(story.Spec(length=200, question_share=0.5))
      parts = [i for text, _ in drawn.parts() for i in self.tokenizer.encode_part(text)]
      self.assertEqual(parts, self.tokenizer.encode(drawn.text()))

  def test_rows(self):
    mix = data.Mix(200, (0.3, 0.5), plain=0.0)
    ids, weights = data.Stories(self.tokenizer, 5).batch(mix, 8)
    self.assertEqual(ids.shape, (8, 201))
    self.assertTrue((ids[:, 0] == spm.BOS).all())
    ends = (weights > 0).sum(1)   # the last weighted target is </s>
    for row, end in enumerate(ends):
      self.assertEqual(ids[row, end], spm.EOS)
      self.assertNotIn(spm.EOS, ids[row, :end].tolist())


if __name__ == "__main__":
  unittest.main()
