"""Writes a trained model to a GGUF file, and loads it back into PyTorch."""

import torch

import gguf_file as gguf
import lfm2
import llama
import spm

_FILE_TYPE_Q8_0 = 7


def write_model(path, model, tokenizer, name):
  tensors = {key: value.detach().float().cpu().numpy()
             for key, value in model.state_dict().items()}
  architecture = "lfm2" if isinstance(model, lfm2.Lfm2) else "llama"
  metadata = {**_general(name, architecture), **_shape(model.config, architecture),
              **_vocabulary(tokenizer)}
  gguf.write(path, metadata, tensors)


def load_model(path):
  """Loads a file that `write_model` wrote, with dequantised weights."""
  metadata, tensors = gguf.read(path)
  architecture = metadata["general.architecture"]
  make = {"lfm2": lfm2.Lfm2, "llama": llama.Llama}[architecture]
  model = make(_config(metadata, architecture))
  model.load_state_dict({key: torch.from_numpy(value)
                         for key, value in tensors.items()})
  return model.eval().requires_grad_(False)


def load_tokenizer(path):
  metadata, _ = gguf.read(path)
  tokens = metadata["tokenizer.ggml.tokens"]
  return spm.Tokenizer(tokens[spm.FIRST_PIECE:], [])


def make_model(config):
  """Returns an untrained model of the configuration's architecture."""
  return lfm2.Lfm2(config) if isinstance(config, lfm2.Config) else llama.Llama(config)


def _general(name, architecture):
  return {
      "general.architecture": gguf.string(architecture),
      "general.name": gguf.string(name),
      "general.license": gguf.string("MIT"),
      "general.file_type": gguf.u32(_FILE_TYPE_Q8_0),
      "general.quantization_version": gguf.u32(2),
  }


def _shape(config, architecture):
  shape = {
      "block_count": gguf.u32(config.layers),
      "context_length": gguf.u32(config.context),
      "embedding_length": gguf.u32(config.width),
      "feed_forward_length": gguf.u32(config.hidden),
      "attention.head_count": gguf.u32(config.heads),
      "attention.head_count_kv": gguf.u32(config.kv_heads),
      "attention.layer_norm_rms_epsilon": gguf.f32(config.eps),
      "rope.dimension_count": gguf.u32(config.head_size),
      "rope.freq_base": gguf.f32(config.rope_base),
      "vocab_size": gguf.u32(config.vocab),
  }
  if architecture == "lfm2":
    # A layer without keys is a convolution.
    shape["attention.head_count_kv"] = gguf.array(
        gguf.I32, [config.kv_heads if has else 0 for has in config.attention])
    shape["shortconv.l_cache"] = gguf.u32(config.taps)
  if config.window:
    shape["attention.sliding_window"] = gguf.u32(config.window)
    shape["attention.sliding_window_pattern"] = gguf.array(gguf.BOOL, config.windowed)
  return {f"{architecture}.{key}": value for key, value in shape.items()}


def _config(metadata, architecture):
  def key(name, otherwise=None):
    return metadata.get(f"{architecture}.{name}", otherwise)
  kv_heads = key("attention.head_count_kv")
  sizes = dict(
      vocab=key("vocab_size"),
      width=key("embedding_length"),
      layers=key("block_count"),
      heads=key("attention.head_count"),
      kv_heads=max(kv_heads) if isinstance(kv_heads, list) else kv_heads,
      hidden=key("feed_forward_length"),
      context=key("context_length"),
      rope_base=key("rope.freq_base"),
      eps=float(f"{key('attention.layer_norm_rms_epsilon'):.6g}"))
  if architecture == "lfm2":
    return lfm2.Config(**sizes, taps=key("shortconv.l_cache"),
                       attention=tuple(heads > 0 for heads in kv_heads))
  return llama.Config(**sizes, window=key("attention.sliding_window", 0),
                      windowed=tuple(key("attention.sliding_window_pattern", ())))


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
