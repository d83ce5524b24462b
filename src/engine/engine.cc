#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "kvcache/cpu_backend.h"

namespace kvcache {
namespace {

Status CheckOptions(const EngineOptions& options) {
  if (options.context < 0) {
    return {StatusCode::kInvalidArgument,
            "the context is " + std::to_string(options.context) + " tokens, expected at least 1"};
  }
  if (options.prefill_chunk < 1) {
    return {StatusCode::kInvalidArgument, "the prefill chunk is " +
                                              std::to_string(options.prefill_chunk) +
                                              " tokens, expected at least 1"};
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Open(const std::string& path, const EngineOptions& options,
                                             std::unique_ptr<Backend> backend) {
  KVCACHE_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<Engine> engine(new Engine);
  engine->options_ = options;
  KVCACHE_ASSIGN_OR_RETURN(engine->file_, GgufFile::Open(path));
  engine->backend_ = std::move(backend);
  if (engine->backend_ == nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(engine->backend_, MakeCpuBackend({.threads = options.threads}));
  }
  KVCACHE_ASSIGN_OR_RETURN(engine->model_, LoadModel(*engine->file_, *engine->backend_));
  KVCACHE_RETURN_IF_ERROR(
      CheckCacheTypes(engine->info().memory, options.k_type, options.v_type).WithContext(path));
  auto tokenizer = MakeTokenizer(*engine->file_);
  if (!tokenizer.ok()) return std::move(tokenizer).TakeStatus().WithContext(path);
  engine->tokenizer_ = std::move(tokenizer).value();
  KVCACHE_RETURN_IF_ERROR(
      CheckTokenCount(engine->info(), engine->tokenizer_->vocabulary_size()).WithContext(path));

  EngineOptions& chosen = engine->options_;
  if (chosen.context == 0) {
    chosen.context = std::min(engine->info().context_length, kDefaultContext);
  }
  const std::int64_t cells = std::int64_t{chosen.context} * std::max(chosen.max_sequences, 1);
  chosen.prefill_chunk = static_cast<int>(std::min<std::int64_t>(chosen.prefill_chunk, cells));
  engine->cache_ = engine->model_->MakeCache();
  if (RecurrentCache* const states = engine->cache_->Recurrent(); states != nullptr) {
    KVCACHE_RETURN_IF_ERROR(states->SetCheckpoints(chosen.checkpoints));
  }
  KVCACHE_RETURN_IF_ERROR(
      engine->cache_->Init(*engine->backend_, {.k_type = chosen.k_type,
                                               .v_type = chosen.v_type,
                                               .max_sequences = chosen.max_sequences,
                                               .capacity = chosen.context,
                                               .max_batch = chosen.prefill_chunk}));
  KVCACHE_RETURN_IF_ERROR(engine->model_->Reserve(chosen.prefill_chunk));
  return engine;
}

Status Engine::CheckTokens(std::span<const std::int32_t> tokens) const {
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= info().embedding_rows) {
      return {StatusCode::kInvalidArgument, "token " + std::to_string(token) +
                                                " is not in the vocabulary of " +
                                                std::to_string(info().embedding_rows)};
    }
  }
  return Status::Ok();
}

Status Engine::Encode(std::span<const std::int32_t> tokens, SequenceId sequence,
                      const std::atomic<bool>* interrupt) {
  model_->SetInterrupt(interrupt);
  KVCACHE_RETURN_IF_ERROR(CheckTokens(tokens));
  if (has_encoder() && tokens.size() > static_cast<std::size_t>(context())) {
    return {StatusCode::kCacheFull, std::to_string(tokens.size()) +
                                        " tokens do not fit into the context of " +
                                        std::to_string(context())};
  }
  const std::int32_t start[] = {info().decoder_start};
  const Position positions[] = {0};
  const SequenceId sequences[] = {sequence};
  KVCACHE_RETURN_IF_ERROR(cache_->StartForward(
      {.positions = positions, .sequences = sequences, .items = {}}, ForwardMode::kCompute));
  KVCACHE_RETURN_IF_ERROR(model_->Encode(tokens, sequence, *cache_));
  return model_->Forward(start, positions, *cache_);
}

Status Engine::CheckImages(const EngineBatch& batch) const {
  for (const EngineImage& image : batch.images) {
    const auto at = static_cast<std::size_t>(image.index);
    if (image.index < 0 || at >= batch.sequences.size() || at >= batch.positions.size()) {
      return {StatusCode::kInvalidArgument, "an image at index " + std::to_string(image.index) +
                                                " of a batch of " +
                                                std::to_string(batch.tokens.size())};
    }
    for (std::size_t i = 0; i < std::min(batch.sequences.size(), batch.positions.size()); ++i) {
      if (batch.sequences[i] != batch.sequences[at] || batch.positions[i] >= batch.positions[at]) {
        continue;
      }
      return {StatusCode::kInvalidArgument,
              "an image at position " + std::to_string(batch.positions[at]) +
                  " in a pass that begins before it, at " + std::to_string(batch.positions[i])};
    }
  }
  return Status::Ok();
}

Status Engine::Forward(const EngineBatch& batch) {
  model_->SetInterrupt(batch.interrupt);
  KVCACHE_RETURN_IF_ERROR(CheckTokens(batch.tokens));
  KVCACHE_RETURN_IF_ERROR(CheckImages(batch));
  items_.clear();
  for (const EngineImage& image : batch.images) items_.push_back({image.index, image.hash});
  KVCACHE_RETURN_IF_ERROR(cache_->StartForward({.positions = batch.positions,
                                                .sequences = batch.sequences,
                                                .items = items_,
                                                .parents = batch.parents},
                                               ForwardMode::kCompute));
  for (const EngineImage& image : batch.images) {
    const SequenceId sequence = batch.sequences[static_cast<std::size_t>(image.index)];
    KVCACHE_RETURN_IF_ERROR(model_->EncodeStates(image.states, sequence, *cache_));
  }
  return model_->Forward(batch.tokens, batch.positions, *cache_);
}

}  // namespace kvcache
