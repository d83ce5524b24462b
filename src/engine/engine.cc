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
  auto tokenizer = MakeTokenizer(*engine->file_);
  if (!tokenizer.ok()) return std::move(tokenizer).TakeStatus().WithContext(path);
  engine->tokenizer_ = std::move(tokenizer).value();

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

Status Engine::Forward(const EngineBatch& batch) {
  for (const std::int32_t token : batch.tokens) {
    if (token < 0 || token >= info().vocabulary) {
      return {StatusCode::kInvalidArgument, "token " + std::to_string(token) +
                                                " is not in the vocabulary of " +
                                                std::to_string(info().vocabulary)};
    }
  }
  KVCACHE_RETURN_IF_ERROR(cache_->StartForward(
      {.positions = batch.positions, .sequences = batch.sequences, .items = {}},
      ForwardMode::kCompute));
  return model_->Forward(batch.tokens, batch.positions, *cache_);
}

}  // namespace kvcache
