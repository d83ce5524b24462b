#include "model/graph/decoder_texts.h"

#include <numeric>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "model/graph/decoder.h"

namespace kvcache {

Status DecoderTexts::Load(WeightReader& reader) {
  KVCACHE_ASSIGN_OR_RETURN(head_, PooledHead::Load(reader, decoder_.params_));
  if (!decoder_.params_.is_encoder) return Status::Ok();
  std::vector<std::int32_t> reach;
  for (int i = 0; i < decoder_.params_.layers; ++i) {
    // A window is what a query sees on both sides together.
    reach.push_back(decoder_.attention_span(i).window / 2);
  }
  attention_.SetReach(std::move(reach));
  return Status::Ok();
}

Status DecoderTexts::ReserveTexts(int tokens, int texts) {
  const LayerParams& params = decoder_.params_;
  if (!params.is_encoder) return Unsupported("the model is no encoder");
  if (tokens < decoder_.max_batch_) {  // a reserve keeps what it has otherwise
    decoder_.max_batch_ = 0;
    decoder_.activations_ = {};
  }
  KVCACHE_RETURN_IF_ERROR(decoder_.Reserve(tokens));
  return attention_.Reserve(decoder_.backend_, {params.kv_heads[0], params.k_dim, params.v_dim},
                            tokens, texts);
}

Status DecoderTexts::CheckTexts(std::span<const std::int32_t> tokens,
                                std::span<const std::int32_t> lengths) const {
  if (lengths.empty() || std::ssize(lengths) > attention_.reserved_texts()) {
    return InvalidArgument(StrCat("a pass has ", lengths.size(), " texts; must be 1 to ",
                                  attention_.reserved_texts(), ", as reserved"));
  }
  std::int64_t sum = 0;
  for (const std::int32_t length : lengths) {
    if (length < 1)
      return InvalidArgument(StrCat("a text has ", length, " tokens; must be 1 or more"));
    sum += length;
  }
  if (sum == std::ssize(tokens) && sum <= attention_.reserved_tokens()) return Status::Ok();
  return InvalidArgument(StrCat("texts of ", sum, " tokens in a batch of ", tokens.size(),
                                "; both must be equal, and at most ", attention_.reserved_tokens(),
                                ", as reserved"));
}

Status DecoderTexts::ForwardTexts(std::span<const std::int32_t> tokens,
                                  std::span<const std::int32_t> lengths,
                                  const std::function<void()>& between_layers) {
  if (Status status = CheckTexts(tokens, lengths); !status.ok()) {
    decoder_.of_token_ = {};  // they were said for this call
    return status;
  }
  attention_.SetTexts(lengths, between_layers);
  decoder_.batch_ = 0;  // a failed pass leaves no states
  Pass pass(decoder_.backend_, decoder_.activations_, nullptr, attention_.positions(),
            decoder_.interrupt());
  pass.AttendBy(&attention_);
  const TensorView x = pass.TakeHidden(decoder_.params_.hidden_size);
  decoder_.EmbedAdapted(pass, tokens, x);
  decoder_.RunLayers(pass, tokens, x);
  pass.EnterLayer(decoder_.params_.layers);
  KVCACHE_RETURN_IF_ERROR(pass.status());
  decoder_.batch_ = std::ssize(tokens);
  return Status::Ok();
}

Status DecoderTexts::RunHead(const float* states, int count, AdapterUses adapters, float* out) {
  // An interrupted pass may have left the backend at another layer.
  KVCACHE_RETURN_IF_ERROR(decoder_.backend_.EnterLayer(decoder_.params_.layers, TensorView{}));
  AdapterBank* const bank = adapters.empty() ? nullptr : &decoder_.adapters_;
  return head_.Run(decoder_.backend_, states, count, {bank, adapters}, out);
}

}  // namespace kvcache
