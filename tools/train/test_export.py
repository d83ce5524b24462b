"""Checks of the model and of its file."""

import os
import tempfile
import unittest

import numpy
import torch

import bpe
import export
import gguf_file
import lfm2
import llama
import q8_0
import start

_SIZES = dict(width=64, layers=2, heads=4, kv_heads=2, hidden=96, context=300)
_TINY = llama.Config(**_SIZES)
_WINDOW = llama.Config(**_SIZES, window=20, windowed=(True, False))
_HYBRID = lfm2.Config(**_SIZES, taps=4, attention=(False, True))
_EACH = (_TINY, _WINDOW, _HYBRID)


def _random_model(config):
  """Returns a model with every parameter random, so that none has its neutral start."""
  torch.manual_seed(1)
  model = export.make_model(config).eval().requires_grad_(False)
  for p in model.parameters():
    p.add_(torch.randn_like(p) * 0.1)
  return model


class ModelTest(unittest.TestCase):

  def test_decoding_token_by_token_is_the_whole_pass(self):
    for config in _EACH:
      with self.subTest(config=config):
        model = _random_model(config)
        ids = torch.randint(0, 1024, (2, 200))
        past = llama.Past(config)
        steps = [model(ids[:, :150], past)]
        steps += [model(ids[:, i:i + 1], past) for i in range(150, 200)]
        self.assertLess((torch.cat(steps, 1) - model(ids)).abs().max().item(), 1e-4)

  def test_a_window_hides_what_is_before_it(self):
    model = _random_model(llama.Config(**_SIZES, window=20, windowed=(True, True)))
    ids = torch.randint(0, 1024, (1, 100))
    other = ids.clone()
    other[0, 10] = (other[0, 10] + 1) % 1024
    moved = (model(ids) - model(other)).abs().amax(-1)[0]
    # Two layers: the token at 10 affects positions up to 10 + 2 * 19.
    self.assertGreater(moved[48].item(), 0)
    self.assertEqual(moved[49:].max().item(), 0)

  def test_a_hybrid_starts_like_its_teacher(self):
    """If layer 0 attends back by fixed distances, taps do the same."""
    torch.manual_seed(1)
    teacher = llama.Llama(llama.MAIN).eval()
    start.prepare(teacher)
    model = lfm2.Lfm2(lfm2.HYBRID).eval()
    ids = torch.randint(259, 1024, (1, 200))
    lfm2.from_llama(model, teacher, ids[0])
    with torch.no_grad():
      x = teacher.token_embd(ids)
      turn, mask = teacher._turn[:200], teacher._mask[:200, :200]
      wanted = teacher.blk[0](x, turn, mask) - x
      alike = []
      for weights in (model.blk[0].shortconv.conv.weight, torch.zeros(1)):
        model.blk[0].shortconv.conv.weight[:] = weights
        got = model.blk[0](model.token_embd(ids), turn, mask) - x
        alike.append(torch.cosine_similarity(wanted[0, 10:], got[0, 10:], -1).mean().item())
    self.assertGreater(alike[0], 0.85)
    self.assertLess(alike[1], 0.5)

  def test_first_layer_looks_back(self):
    """After `prepare`, a token's state identifies the tokens before it."""
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
    back = q8_0.dequantize(q8_0.quantize(values), values.shape)
    step = numpy.abs(values.reshape(-1, 32)).max(1) / 127
    error = numpy.abs(values - back).reshape(-1, 32).max(1)
    self.assertTrue((error <= 0.57 * step).all())

  def test_zeros(self):
    zeros = numpy.zeros((1, 32), numpy.float32)
    self.assertTrue((q8_0.dequantize(q8_0.quantize(zeros), (1, 32)) == 0).all())


class FileTest(unittest.TestCase):

  def test_a_written_model_reads_back(self):
    for config in _EACH:
      with self.subTest(config=config):
        self._write_and_read(config)

  def _write_and_read(self, config):
    model, tokenizer = _random_model(config), bpe.learn()
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, "tiny.gguf")
      export.write_model(path, model, tokenizer, "tiny")
      metadata, tensors = gguf_file.read(path)
      again = export.load_model(path)
      words = export.load_tokenizer(path)
      export.write_model(path + "2", again, words, "tiny")
      with open(path, "rb") as a, open(path + "2", "rb") as b:
        first, second = a.read(), b.read()
    hybrid = config is _HYBRID
    self.assertEqual(metadata["general.architecture"], "lfm2" if hybrid else "llama")
    heads = "lfm2" if hybrid else "llama"
    self.assertEqual(metadata[heads + ".attention.head_count_kv"], [0, 2] if hybrid else 2)
    self.assertEqual(metadata["tokenizer.ggml.bos_token_id"], 1)
    self.assertEqual(set(tensors), set(model.state_dict()))
    self.assertEqual(again.config, config)
    self.assertEqual((words.tokens, words.scores, words.types),
                     (tokenizer.tokens, tokenizer.scores, tokenizer.types))
    # Quantising quantised values changes almost nothing.
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
