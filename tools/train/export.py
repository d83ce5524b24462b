"""From a trained model to a GGUF file, and back to PyTorch."""

import torch

import gguf_file as gguf
import llama
import spm

_FILE_TYPE_Q8_0 = 7


def write_model(path, model, tokenizer, name):
  tensors = {key: value.detach().float().cpu().numpy()
             for key, value in model.state_dict().items()}
  metadata = {**_general(name), **_shape(model.config), **_vocabulary(tokenizer)}
  gguf.write(path, metadata, tensors)


def load_model(path):
  """The model of a file that `write_model` wrote, with dequantised weights."""
  metadata, tensors = gguf.read(path)
  model = llama.Llama(_config(metadata))
  model.load_state_dict({key: torch.from_numpy(value)
                         for key, value in tensors.items()})
  return model.eval().requires_grad_(False)


def load_tokenizer(path):
  metadata, _ = gguf.read(path)
  tokens = metadata["tokenizer.ggml.tokens"]
  return spm.Tokenizer(tokens[spm.FIRST_PIECE:], [])


def _general(name):
  return {
      "general.architecture": gguf.string("llama"),
      "general.name": gguf.string(name),
      "general.license": gguf.string("MIT"),
      "general.file_type": gguf.u32(_FILE_TYPE_Q8_0),
      "general.quantization_version": gguf.u32(2),
  }


def _shape(config):
  return {
      "llama.block_count": gguf.u32(config.layers),
      "llama.context_length": gguf.u32(config.context),
      "llama.embedding_length": gguf.u32(config.width),
      "llama.feed_forward_length": gguf.u32(config.hidden),
      "llama.attention.head_count": gguf.u32(config.heads),
      "llama.attention.head_count_kv": gguf.u32(config.kv_heads),
      "llama.attention.layer_norm_rms_epsilon": gguf.f32(config.eps),
      "llama.rope.dimension_count": gguf.u32(config.head_size),
      "llama.rope.freq_base": gguf.f32(config.rope_base),
      "llama.vocab_size": gguf.u32(config.vocab),
  }


def _config(metadata):
  return llama.Config(
      vocab=metadata["llama.vocab_size"],
      width=metadata["llama.embedding_length"],
      layers=metadata["llama.block_count"],
      heads=metadata["llama.attention.head_count"],
      kv_heads=metadata["llama.attention.head_count_kv"],
      hidden=metadata["llama.feed_forward_length"],
      context=metadata["llama.context_length"],
      rope_base=metadata["llama.rope.freq_base"],
      eps=float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"))


def _vocabulary(tokenizer):
  return {
      "tokenizer.ggml.model": gguf.string("llama"),
      "tokenizer.ggml.tokens": gguf.array(gguf.STRING, tokenizer.tokens),
      "tokenizer.ggml.scores": gguf.array(gguf.F32, tokenizer.scores),
      "tokenizer.ggml.token_type": gguf.array(gguf.I32, tokenizer.types),
      "tokenizer.ggml.bos_token_id": gguf.u32(spm.BOS),
      "tokenizer.ggml.eos_token_id": gguf.u32(spm.EOS),
      "tokenizer.ggml.unknown_token_id": gguf.u32(spm.UNK),
      "tokenizer.ggml.add_bos_token": gguf.boolean(True),
      "tokenizer.ggml.add_eos_token": gguf.boolean(False),
      "tokenizer.ggml.add_space_prefix": gguf.boolean(True),
  }
