#include "embedding/encoder_embedder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

// Each text of a pass has keys and values of its own tiles, so that more texts need more memory.
constexpr std::size_t kTextsOfPass = 128;

}  // namespace

Result<std::unique_ptr<Embedder>> EncoderEmbedder::Open(std::unique_ptr<GgufFile> file,
                                                        const EmbedderOptions& options,
                                                        std::unique_ptr<Backend> backend) {
  std::unique_ptr<EncoderEmbedder> embedder(new EncoderEmbedder);
  embedder->file_ = std::move(file);
  embedder->backend_ = std::move(backend);
  {
    PackedLoad load(*embedder->file_, *embedder->backend_);
    KVCACHE_ASSIGN_OR_RETURN(embedder->encoder_, LoadModel(*embedder->file_, *embedder->backend_));
    embedder->panels_ = load.Finish();
  }
  KVCACHE_ASSIGN_OR_RETURN(embedder->tokenizer_, MakeTokenizer(*embedder->file_));
  KVCACHE_RETURN_IF_ERROR(embedder->adapters_.Open(options.adapters, *embedder->encoder_));
  const int trained = embedder->encoder_->info().context_length;
  if (options.context > trained) {
    return InvalidArgument(StrCat("the context is ", options.context,
                                  " tokens; the model has positions for ", trained));
  }
  const int longest = options.context == 0 ? trained : options.context;
  embedder->pass_tokens_ = std::min(options.pass_tokens, longest);
  KVCACHE_RETURN_IF_ERROR(embedder->Describe(*embedder->file_, *embedder->encoder_,
                                             *embedder->tokenizer_, options, longest));
  KVCACHE_RETURN_IF_ERROR(embedder->Reserve(embedder->pass_tokens_));
  return std::unique_ptr<Embedder>(std::move(embedder));
}

std::int64_t EncoderEmbedder::MemoryBytes() const {
  return static_cast<std::int64_t>(encoder_->OwnedWeightBytes()) + encoder_->ActivationBytes() +
         adapters_.HeldBytes();
}

std::size_t EncoderEmbedder::FirstPass(InputTokens inputs) const {
  std::size_t count = 1;
  std::size_t tokens = inputs[0].size();
  while (count < std::min(inputs.size(), kTextsOfPass)) {
    tokens += inputs[count].size();
    if (tokens > static_cast<std::size_t>(pass_tokens_)) break;
    ++count;
  }
  return count;
}

Status EncoderEmbedder::TakeStates(std::int32_t first, std::int32_t length, PooledStates& states) {
  const auto size = static_cast<std::size_t>(encoder_->info().hidden_size);
  const auto take = [&](std::int32_t from, std::int32_t count) -> Status {
    rows_.resize(static_cast<std::size_t>(count));
    std::iota(rows_.begin(), rows_.end(), from);
    values_.resize(rows_.size() * size);
    KVCACHE_RETURN_IF_ERROR(encoder_->FinalStates(rows_, values_.data()));
    states.Append(values_, size);
    return Status::Ok();
  };
  if (states.NeedsAll()) return take(first, length);
  if (states.NeedsFirst()) {
    KVCACHE_RETURN_IF_ERROR(take(first, 1));
    states.Skip(length - 1);
    return Status::Ok();
  }
  states.Skip(length - 1);
  return take(first + length - 1, 1);
}

Status EncoderEmbedder::RunPass(InputTokens inputs, const EmbedOptions& options,
                                std::span<PooledStates> states) {
  tokens_.clear();
  lengths_.clear();
  for (const std::vector<std::int32_t>& input : inputs) {
    tokens_.insert(tokens_.end(), input.begin(), input.end());
    lengths_.push_back(static_cast<std::int32_t>(input.size()));
  }
  EmbeddingModel& model = *encoder_->embedding();
  if (std::ssize(tokens_) > reserved_tokens_) {
    KVCACHE_RETURN_IF_ERROR(Reserve(static_cast<int>(tokens_.size())));
  }
  if (!options.adapters.empty()) {
    of_token_.assign(tokens_.size(), options.adapters);
    encoder_->SetAdapters(of_token_);
  }
  KVCACHE_RETURN_IF_ERROR(model.ForwardTexts(tokens_, lengths_, options.between_passes));
  std::int32_t first = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(TakeStates(first, lengths_[i], states[i]));
    first += lengths_[i];
  }
  return Status::Ok();
}

Status EncoderEmbedder::Reserve(int tokens) {
  reserved_tokens_ = 0;
  values_ = {};
  KVCACHE_RETURN_IF_ERROR(encoder_->embedding()->ReserveTexts(tokens, kTextsOfPass));
  reserved_tokens_ = tokens;
  return Status::Ok();
}

Status EncoderEmbedder::RunPasses(InputTokens inputs, const EmbedOptions& options, Pooled& pooled) {
  for (std::size_t at = 0; at < inputs.size();) {
    if (at > 0 && options.between_passes) options.between_passes();
    const std::size_t count = FirstPass(inputs.subspan(at));
    KVCACHE_RETURN_IF_ERROR(
        RunPass(inputs.subspan(at, count), options, std::span(pooled.states).subspan(at, count)));
    pooled.computed_tokens += std::ssize(tokens_);
    at += count;
  }
  return Status::Ok();
}

Result<PooledEmbedder::Pooled> EncoderEmbedder::Compute(InputTokens inputs, Pooling pooling,
                                                        const EmbedOptions& options) {
  encoder_->SetInterrupt(options.interrupt);
  Pooled pooled;
  pooled.states.assign(inputs.size(), PooledStates(pooling));
  const Status status = RunPasses(inputs, options, pooled);
  // A long input leaves no memory behind.
  if (reserved_tokens_ > pass_tokens_) KVCACHE_RETURN_IF_ERROR(Reserve(pass_tokens_));
  if (!status.ok()) return status;
  return pooled;
}

}  // namespace kvcache
