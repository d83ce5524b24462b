"""Checks of the model and of its file."""

import os
import tempfile
import unittest

import numpy
import torch

import bpe
import export
import gguf_file
import llama
import q8_0
import start

_TINY = llama.Config(width=64, layers=2, heads=4, kv_heads=2, hidden=96, context=64)


class ModelTest(unittest.TestCase):

  def test_decoding_token_by_token_is_the_whole_pass(self):
    torch.manual_seed(1)
    model = llama.Llama(llama.Config(width=64, layers=2, heads=4, kv_heads=2,
                                     hidden=96, context=300)).eval()
    ids = torch.randint(0, 1024, (2, 200))
    past = llama.Past(model.config)
    with torch.no_grad():
      steps = [model(ids[:, :150], past)]
      steps += [model(ids[:, i:i + 1], past) for i in range(150, 200)]
      whole = model(ids)
    self.assertLess((torch.cat(steps, 1) - whole).abs().max().item(), 1e-4)

  def test_first_layer_looks_back(self):
    """After `prepare`, a token's state tells what stood before it."""
    torch.manual_seed(1)
    model = llama.Llama(llama.MAIN).eval()
    start.prepare(model)
    ids = torch.randint(259, 1024, (1, 40))
    other = ids.clone()
    other[0, 30] = (other[0, 30] - 259 + 1) % 765 + 259
    with torch.no_grad():
      turn, mask = model._turn[:40], model._mask[:40, :40]
      change = [(model.blk[0](model.token_embd(x), turn, mask)) for x in (ids, other)]
    moved = (change[0] - change[1]).norm(dim=-1)[0]
    self.assertEqual(moved[:30].max().item(), 0)
    self.assertGreater(moved[31:36].min().item(), 5 * moved[36:].max().item())


class Q8Test(unittest.TestCase):

  def test_error_is_half_a_step(self):
    rng = numpy.random.default_rng(1)
    values = rng.normal(size=(8, 64)).astype(numpy.float32)
    back = q8_0.dequantise(q8_0.quantise(values), values.shape)
    step = numpy.abs(values.reshape(-1, 32)).max(1) / 127
    error = numpy.abs(values - back).reshape(-1, 32).max(1)
    self.assertTrue((error <= 0.57 * step).all())

  def test_zeros(self):
    zeros = numpy.zeros((1, 32), numpy.float32)
    self.assertTrue((q8_0.dequantise(q8_0.quantise(zeros), (1, 32)) == 0).all())


class FileTest(unittest.TestCase):

  def test_a_written_model_reads_back(self):
    torch.manual_seed(2)
    model, tokenizer = llama.Llama(_TINY), bpe.learn()
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, "tiny.gguf")
      export.write_model(path, model, tokenizer, "tiny")
      metadata, tensors = gguf_file.read(path)
      again = export.load_model(path)
      words = export.load_tokenizer(path)
      export.write_model(path + "2", again, words, "tiny")
      with open(path, "rb") as a, open(path + "2", "rb") as b:
        first, second = a.read(), b.read()
    self.assertEqual(metadata["general.architecture"], "llama")
    self.assertEqual(metadata["llama.attention.head_count_kv"], 2)
    self.assertEqual(metadata["tokenizer.ggml.bos_token_id"], 1)
    self.assertEqual(set(tensors), set(model.state_dict()))
    self.assertEqual(again.config, _TINY)
    self.assertEqual((words.tokens, words.scores, words.types),
                     (tokenizer.tokens, tokenizer.scores, tokenizer.types))
    # Quantising what was quantised changes next to nothing.
    self.assertEqual(len(first), len(second))

  def test_tensors_are_aligned(self):
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, "a.gguf")
      one = numpy.arange(3, dtype=numpy.float32)
      matrix = numpy.arange(64, dtype=numpy.float32).reshape(2, 32)
      gguf_file.write(path, {"a": gguf_file.u32(1)}, {"x": one, "y": matrix})
      self.assertEqual(os.path.getsize(path) % gguf_file.ALIGNMENT, 0)
      _, tensors = gguf_file.read(path)
    self.assertTrue((tensors["x"] == one).all())
    self.assertLess(numpy.abs(tensors["y"] - matrix).max(), 0.3)


if __name__ == "__main__":
  unittest.main()
