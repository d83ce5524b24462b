// A head that predicts one token more than the model (multi-token prediction): a layer of the model's own
// kind over the embedding of a token and the model's final state for the token before it.
//
//   x = join · (rms(embedding of token p) | rms(final state of token p - 1))
//   x = layer(x)                     attention over the head's own keys and values
//   state = rms(x)                   logits of token p + 1 = output · state
//
// To draft further, `state` takes the place of the model's final state. Final states are those after the
// last norm.
//
// The head's own output matrix may have rows for a part of the tokens: a draft costs less, and the model's
// other tokens are never drafted. A table then has the token of each row.
//
// Source: DeepSeek-AI, "DeepSeek-V3" (2024); Qwen team, "Qwen3-Next" (2025); for the table, Zhao et al.,
// "FR-Spec" (2025). GGUF names: blk.N.nextn.eh_proj, enorm, hnorm, shared_head_norm (in bailingmoe2
// blk.N.layer_output_norm), embed_tokens, shared_head_head, and the tensors of layer N. The table is `d2t`, as in llama.cpp's files of EAGLE-3's heads:
// ids of the model, where the checkpoints in Hugging Face's layout have differences of ids.
// Thread safety: that of Pass.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/graph/pass.h"
#include "model/load/hyperparameters.h"
#include "model/load/weights.h"

namespace kvcache {

struct DraftHead {
  static constexpr const char* kTokens = "d2t";  // the tensor with `tokens`

  Norm embedding_norm, state_norm;
  Projection join;  // 2 × hidden_size → hidden_size
  // A file without these has the model's.
  std::optional<Norm> norm;
  std::optional<TensorView> embedding;  // [hidden_size, rows]
  std::optional<Projection> output;     // hidden_size → vocabulary, or `tokens`
  std::vector<std::int32_t>
      tokens;  // of each row of `output`; empty: the vocabulary's, in its order

  // Takes the tensors of block `layer`, except those of its layer. Errors name the tensor.
  static Result<DraftHead> Load(WeightReader& reader, const LayerParams& params, int layer);

  // x = join · (rms(embedded) | rms(previous)), all [hidden_size, batch].
  void Join(Pass& pass, const TensorView& embedded, const TensorView& previous,
            const TensorView& x) const;

 private:
  Status LoadOutput(WeightReader& reader, const LayerParams& params, const std::string& name);
};

}  // namespace kvcache
