"""Checks of the step that trims a draft head's output matrix. They need no PyTorch."""

import os
import tempfile
import unittest

import numpy

import gguf_file as gguf
import spm
import trim_head

_MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models")
_MATRIX = "blk.2.nextn.shared_head_head.weight"


def _read(path):
  with open(path, "rb") as file:
    return file.read()


class TrimTest(unittest.TestCase):

  def setUp(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.model, self.head, self.out = (os.path.join(folder.name, name)
                                       for name in ("model", "head", "out"))
    self.values = numpy.random.default_rng(1).normal(size=(50, 64)).astype(numpy.float32)

  def _write(self, output="token_embd.weight"):
    other = numpy.ones((50, 64), numpy.float32)
    gguf.write(self.model, {"a": gguf.u32(1)}, {"token_embd.weight": other, output: self.values})
    gguf.write(self.head, {"b": gguf.string("c"), "d": gguf.array(gguf.F32, [1, 2])},
               {"blk.2.nextn.eh_proj.weight": other, "blk.2.attn_norm.weight": other[0]})

  def test_rows_are_the_models(self):
    for output in ("token_embd.weight", "output.weight"):
      with self.subTest(output=output):
        self._write(output)
        trim_head.trim(self.model, self.head, [3, 7, 49], self.out)
        _, model = gguf.read_as_written(self.model)
        metadata, tensors = gguf.read_as_written(self.out)
        old_metadata, old_tensors = gguf.read_as_written(self.head)
        self.assertEqual(metadata, old_metadata)
        self.assertEqual({name: tensors[name] for name in old_tensors}, old_tensors)
        self.assertEqual(set(tensors) - set(old_tensors), {_MATRIX, "d2t"})
        self.assertEqual(tensors["d2t"].values().tolist(), [3, 7, 49])
        self.assertEqual(tensors[_MATRIX].shape, (3, 64))
        self.assertTrue((tensors[_MATRIX].values() == model[output].values()[[3, 7, 49]]).all())

  def test_a_trimmed_head_gets_other_rows(self):
    self._write()
    trim_head.trim(self.model, self.head, [1, 2], self.out)
    once = _read(self.out)
    trim_head.trim(self.model, self.head, [5, 6, 7], self.head)
    trim_head.trim(self.model, self.head, [1, 2], self.head)
    self.assertEqual(_read(self.head), once)

  def test_the_most_frequent_tokens_are_ascending(self):
    counts = numpy.array([5, 0, 9, 5, 7, 5])
    self.assertEqual(trim_head.most_frequent(counts, 3).tolist(), [0, 2, 4])
    self.assertEqual(trim_head.most_frequent(counts, 4).tolist(), [0, 2, 3, 4])


class ShippedTest(unittest.TestCase):

  def setUp(self):
    self.model = os.path.join(_MODELS, "story.gguf")
    self.head = os.path.join(_MODELS, "story-head.gguf")

  def test_a_file_is_written_as_it_was_read(self):
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, "again.gguf")
      gguf.write(path, *gguf.read_as_written(self.head))
      self.assertEqual(_read(path), _read(self.head))

  def test_the_shipped_head_has_all_tokens_of_the_text(self):
    _, tensors = gguf.read_as_written(self.head)
    tokens = set(tensors["d2t"].values().tolist())
    vocabulary = gguf.read(self.model)[0]["tokenizer.ggml.tokens"]
    counts = trim_head.count_tokens(spm.Tokenizer(vocabulary[spm.FIRST_PIECE:], []), 20_000)
    self.assertLessEqual(set(numpy.flatnonzero(counts).tolist()), tokens)


if __name__ == "__main__":
  unittest.main()
