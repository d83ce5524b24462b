#include "embedding/decoder_embedder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "kvcache/cpu_backend.h"
#include "model/layer_memory.h"

namespace kvcache {
namespace {

constexpr SharingLimits kLimits;
constexpr int kNodeSequences = kLimits.max_depth;
// Sequences of inputs in a pass. Each has a state of its own in recurrent layers, which are large.
constexpr int kInputSequences = 56;
constexpr int kRecurrentInputSequences = 8;
constexpr int kCellTileSlack = 16;  // a sequence's cells may begin a tile

bool IsRecurrent(const ModelInfo& info) {
  return std::ranges::any_of(info.memory, [](const LayerMemory& layer) {
    return layer.kind == LayerMemory::Kind::kRecurrent;
  });
}

// Describes the model without its weights.
Result<ModelInfo> ReadInfo(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  const std::unique_ptr<Backend> shapes = MakeShapeBackend();
  KVCACHE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, LoadModel(*file, *shapes));
  return model->info();
}

// Returns the engine's options for sequences that share the tokens of a path and one pass.
EngineOptions OptionsOf(const EmbedderOptions& options, int context, int sequences) {
  return {.threads = options.threads,
          .context = context,
          .max_sequences = sequences,
          .pool_tokens = context + 2 * options.pass_tokens + sequences * kCellTileSlack,
          .prefill_chunk = options.pass_tokens,
          .adapters = options.adapters};
}

}  // namespace

Result<std::unique_ptr<Embedder>> DecoderEmbedder::Open(const std::string& path,
                                                        const EmbedderOptions& options,
                                                        std::unique_ptr<Backend> backend) {
  KVCACHE_ASSIGN_OR_RETURN(const ModelInfo described, ReadInfo(path));
  std::unique_ptr<DecoderEmbedder> embedder(new DecoderEmbedder);
  embedder->sequences_ =
      kNodeSequences + (IsRecurrent(described) ? kRecurrentInputSequences : kInputSequences);
  const int context =
      options.context > 0 ? options.context : std::min(described.context_length, kDefaultContext);
  KVCACHE_ASSIGN_OR_RETURN(
      embedder->engine_,
      Engine::Open(path, OptionsOf(options, context, embedder->sequences_), std::move(backend)));
  Engine& engine = *embedder->engine_;
  if (engine.has_encoder()) {
    return Unsupported(StrCat(path, ": architecture ", engine.info().architecture,
                              " has an encoder and a decoder: its embeddings are not supported"));
  }
  KVCACHE_RETURN_IF_ERROR(embedder->Describe(engine.file(), engine.model(), engine.tokenizer(),
                                             options, engine.context()));
  return std::unique_ptr<Embedder>(std::move(embedder));
}

std::int64_t DecoderEmbedder::MemoryBytes() const {
  const EngineOptions& options = engine_->options();
  const std::vector<LayerMemory>& layers = engine_->info().memory;
  return static_cast<std::int64_t>(engine_->model().OwnedWeightBytes()) +
         engine_->WorkspaceBytes() +
         options.pool_tokens * BytesPerToken(layers, options.k_type, options.v_type) +
         sequences_ * BytesPerSequence(layers, options.k_type, options.v_type);
}

Result<std::size_t> DecoderEmbedder::Fork(int depth, std::int32_t to, std::size_t tokens) {
  if (tokens == 0) return std::size_t{0};
  Cache& cache = engine_->cache();
  const auto length = static_cast<Position>(tokens);
  KVCACHE_RETURN_IF_ERROR(cache.CopyPrefix(SequenceId{depth - 1}, SequenceId{to}, length));
  if (cache.CanResume(SequenceId{to}, length)) return tokens;
  KVCACHE_RETURN_IF_ERROR(cache.Remove(SequenceId{to}, 0, kEndOfSequence));
  return std::size_t{0};
}

Status DecoderEmbedder::TakeStates(std::span<const std::int32_t> rows, PooledStates& states) {
  const auto size = static_cast<std::size_t>(model().info().hidden_size);
  values_.resize(rows.size() * size);
  KVCACHE_RETURN_IF_ERROR(model().FinalStates(rows, values_.data()));
  states.Append(values_, size);
  return Status::Ok();
}

Status DecoderEmbedder::RunPass(Call& call, std::vector<Tail>& tails) {
  if (call.pooled.computed_tokens > 0 && call.options.between_passes) call.options.between_passes();
  tokens_.clear();
  positions_.clear();
  sequence_of_.clear();
  std::vector<std::size_t> counts;  // tokens of each tail in the pass
  for (const Tail& tail : tails) {
    const auto room = static_cast<std::size_t>(engine_->max_batch()) - tokens_.size();
    counts.push_back(std::min(tail.end - tail.begin, room));
    for (std::size_t i = tail.begin; i < tail.begin + counts.back(); ++i) {
      tokens_.push_back(call.inputs[tail.input][i]);
      positions_.push_back(static_cast<Position>(i));
      sequence_of_.push_back(SequenceId{tail.sequence});
    }
  }
  KVCACHE_RETURN_IF_ERROR(engine_->Forward({.tokens = tokens_,
                                            .positions = positions_,
                                            .sequences = sequence_of_,
                                            .interrupt = call.options.interrupt}));
  call.pooled.computed_tokens += std::ssize(tokens_);
  rows_.resize(tokens_.size());
  std::iota(rows_.begin(), rows_.end(), 0);
  std::span<const std::int32_t> rows = rows_;
  for (std::size_t i = 0; i < tails.size(); ++i) {
    if (counts[i] == 0) continue;
    tails[i].begin += counts[i];
    KVCACHE_RETURN_IF_ERROR(TakeNeeded(rows.first(counts[i]), tails[i]));
    rows = rows.subspan(counts[i]);
  }
  return Status::Ok();
}

Status DecoderEmbedder::TakeNeeded(std::span<const std::int32_t> rows, Tail& tail) {
  PooledStates& states = tail.states;
  if (states.NeedsAll()) return TakeStates(rows, states);
  const bool ends = tail.begin == tail.end;
  const auto others = static_cast<std::int64_t>(rows.size()) - 1;
  if (states.NeedsFirst()) {
    KVCACHE_RETURN_IF_ERROR(TakeStates(rows.first(1), states));
    states.Skip(others);
  } else if (states.NeedsLast() && ends) {
    states.Skip(others);
    KVCACHE_RETURN_IF_ERROR(TakeStates(rows.last(1), states));
  } else {
    states.Skip(others + 1);
  }
  return Status::Ok();
}

Status DecoderEmbedder::RunTails(Call& call, std::vector<Tail>& tails) {
  const auto is_open = [](const Tail& tail) { return tail.begin < tail.end; };
  while (std::ranges::any_of(tails, is_open)) KVCACHE_RETURN_IF_ERROR(RunPass(call, tails));
  return Status::Ok();
}

Status DecoderEmbedder::RunLeaves(Call& call, const SharedBeginning& node, int depth,
                                  const PooledStates& states) {
  const auto most_tokens = static_cast<std::size_t>(engine_->max_batch());
  const auto most_tails = static_cast<std::size_t>(sequences_ - kNodeSequences);
  for (std::size_t at = 0; at < node.leaves.size();) {
    std::vector<Tail> tails;
    std::size_t tokens = 0;
    for (; at < node.leaves.size() && tails.size() < most_tails; ++at) {
      const std::size_t input = node.leaves[at];
      const std::size_t length = call.inputs[input].size();
      if (length == node.end) {
        call.pooled.states[input] = states;  // the node ends with the input
        continue;
      }
      tokens += length - node.end;
      if (tokens > most_tokens && !tails.empty()) break;
      const auto sequence = static_cast<std::int32_t>(kNodeSequences + std::ssize(tails));
      KVCACHE_ASSIGN_OR_RETURN(const std::size_t begin, Fork(depth, sequence, node.end));
      tails.push_back({input, begin, length, sequence, begin == node.end ? states : fresh_});
    }
    KVCACHE_RETURN_IF_ERROR(RunTails(call, tails));
    for (Tail& tail : tails) {
      KVCACHE_RETURN_IF_ERROR(
          engine_->cache().Remove(SequenceId{tail.sequence}, 0, kEndOfSequence));
      call.pooled.states[tail.input] = std::move(tail.states);
    }
  }
  return Status::Ok();
}

Status DecoderEmbedder::RunNode(Call& call, const SharedBeginning& node, int depth,
                                const PooledStates& states) {
  KVCACHE_RETURN_IF_ERROR(RunLeaves(call, node, depth, states));
  for (const SharedBeginning& child : node.children) {
    KVCACHE_ASSIGN_OR_RETURN(const std::size_t begin, Fork(depth, depth, node.end));
    std::vector<Tail> tails;
    tails.push_back({child.input, begin, child.end, depth, begin == node.end ? states : fresh_});
    KVCACHE_RETURN_IF_ERROR(RunTails(call, tails));
    KVCACHE_RETURN_IF_ERROR(RunNode(call, child, depth + 1, tails[0].states));
    KVCACHE_RETURN_IF_ERROR(engine_->cache().Remove(SequenceId{depth}, 0, kEndOfSequence));
  }
  return Status::Ok();
}

Result<PooledEmbedder::Pooled> DecoderEmbedder::Compute(InputTokens inputs, Pooling pooling,
                                                        const EmbedOptions& options) {
  Pooled pooled;
  fresh_ = PooledStates(pooling);
  pooled.states.assign(inputs.size(), fresh_);
  Call call{inputs, options, pooled};
  KVCACHE_RETURN_IF_ERROR(UseAdapters(options.adapters));
  const SharedBeginning root = FindSharedBeginnings(inputs, kLimits);
  Status status;
  try {
    status = RunNode(call, root, 0, fresh_);
  } catch (...) {
    KVCACHE_RETURN_IF_ERROR(RemoveAll());
    throw;
  }
  KVCACHE_RETURN_IF_ERROR(RemoveAll());
  if (!status.ok()) return status;
  return pooled;
}

Status DecoderEmbedder::UseAdapters(AdapterUses uses) {
  if (engine_->adapters().empty()) return Status::Ok();
  for (std::int32_t i = 0; i < sequences_; ++i) {
    KVCACHE_RETURN_IF_ERROR(engine_->SetAdapters(SequenceId{i}, uses));
  }
  return Status::Ok();
}

Status DecoderEmbedder::RemoveAll() {
  for (std::int32_t i = 0; i < sequences_; ++i) {
    KVCACHE_RETURN_IF_ERROR(engine_->cache().Remove(SequenceId{i}, 0, kEndOfSequence));
  }
  return Status::Ok();
}

}  // namespace kvcache
