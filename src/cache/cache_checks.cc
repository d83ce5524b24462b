#include "cache/cache_checks.h"

#include "cache/history_mask.h"

namespace kvcache {

Status CheckReady(CacheState state) {
  if (state == CacheState::kReady) return Status::Ok();
  return Invalid(state == CacheState::kNew ? "the cache is not initialised"
                                           : "the cache is closed");
}

Status CheckConfig(const CacheConfig& config) {
  for (const int padding : {config.cell_padding, config.batch_padding}) {
    if (padding < 1 || padding > kMaxPadding) {
      return Invalid("a padding of " + std::to_string(padding) + " is not in [1, " +
                     std::to_string(kMaxPadding) + "]");
    }
  }
  if (config.v_transposed && config.layout != KvLayout::kPlain) {
    return Invalid("V can be transposed in the plain layout only");
  }
  if (!HistoryMask::Supports(config.mask_type)) {
    return {StatusCode::kUnsupported,
            "no masks of type " + std::string(InfoOf(config.mask_type).name)};
  }
  return Status::Ok();
}

Status CheckSizes(const CacheOptions& options) {
  if (options.max_sequences >= 1 && options.capacity >= 1 && options.max_batch >= 1) {
    return Status::Ok();
  }
  return Invalid("sizes must be at least one: " + SizesText(options) + ", batches of " +
                 std::to_string(options.max_batch));
}

Status CheckTypes(const KvBackend& backend, const CacheOptions& options,
                  const CacheConfig& config) {
  KVCACHE_RETURN_IF_ERROR(backend.CheckKvTypes(options.k_type, options.v_type, config.layout));
  if (config.v_transposed && InfoOf(options.v_type).block_size > 1) {
    return {StatusCode::kUnsupported,
            "V of type " + std::string(InfoOf(options.v_type).name) + " cannot be transposed"};
  }
  return Status::Ok();
}

Status CheckSequence(SequenceId id, const CacheOptions& options) {
  if (Index(id) >= 0 && Index(id) < options.max_sequences) return Status::Ok();
  return Invalid("sequence " + std::to_string(Index(id)) + " is not in [0, " +
                 std::to_string(options.max_sequences) + ")");
}

namespace {

// Whether token i of the drafts follows what it says.
Status CheckParent(const Batch& batch, std::size_t i) {
  const std::int32_t parent = batch.parents[i];
  const auto wrong = [&](const std::string& what) {
    return Invalid("draft " + std::to_string(i) + " of the batch " + what);
  };
  if (parent == Drafts::kNone) return Status::Ok();
  if (parent < 0 || static_cast<std::size_t>(parent) >= i) {
    return wrong("follows token " + std::to_string(parent) +
                 ", which does not come before it; -1 is the sequence's end");
  }
  if (batch.sequences[parent] != batch.sequences[i]) {
    return wrong("follows token " + std::to_string(parent) + " of another sequence, " +
                 std::to_string(Index(batch.sequences[parent])));
  }
  if (std::int64_t{batch.positions[parent]} + 1 != batch.positions[i]) {
    return wrong("is at position " + std::to_string(batch.positions[i]) +
                 ", the token that it follows at " + std::to_string(batch.positions[parent]));
  }
  return Status::Ok();
}

Status CheckDrafts(const Batch& batch) {
  if (batch.parents.empty()) return Status::Ok();
  if (batch.parents.size() != batch.size()) {
    return Invalid("the batch has " + std::to_string(batch.size()) + " tokens and " +
                   std::to_string(batch.parents.size()) + " parents");
  }
  if (!batch.items.empty()) return Invalid("a batch of drafts has multimodal items");
  for (std::size_t i = 0; i < batch.size(); ++i) KVCACHE_RETURN_IF_ERROR(CheckParent(batch, i));
  return Status::Ok();
}

}  // namespace

Status CheckBatch(const Batch& batch, const CacheOptions& options) {
  if (batch.sequences.size() != batch.size()) {
    return Invalid("the batch has " + std::to_string(batch.size()) + " positions and " +
                   std::to_string(batch.sequences.size()) + " sequences");
  }
  if (batch.size() == 0) return Invalid("the batch is empty");
  if (batch.size() > static_cast<std::size_t>(options.max_batch)) {
    return Invalid("the batch has " + std::to_string(batch.size()) + " tokens, at most " +
                   std::to_string(options.max_batch) + " are allowed");
  }
  for (const SequenceId id : batch.sequences) KVCACHE_RETURN_IF_ERROR(CheckSequence(id, options));
  for (const Position position : batch.positions) {
    if (position < 0 || position == kEndOfSequence) {
      return Invalid(std::to_string(position) + " is not a position");
    }
  }
  for (const MultimodalItem& item : batch.items) {
    if (item.index < 0 || static_cast<std::size_t>(item.index) >= batch.size()) {
      return Invalid("an item at index " + std::to_string(item.index) + " of a batch of " +
                     std::to_string(batch.size()));
    }
  }
  return CheckDrafts(batch);
}

Status CheckQueries(std::span<const std::int32_t> queries, const Drafts& drafts,
                    std::int64_t batch) {
  for (const std::int32_t query : queries) {
    if (query < 0 || query >= batch) {
      return Invalid("query " + std::to_string(query) + " is not in the batch of " +
                     std::to_string(batch));
    }
  }
  if (queries.empty() || drafts.empty()) return Status::Ok();
  return {StatusCode::kUnsupported, "drafts see the path that leads to them, nothing later"};
}

Status CheckRange(Position begin, Position end) {
  if (begin >= 0 && end >= begin) return Status::Ok();
  return Invalid("no such range of positions: [" + std::to_string(begin) + ", " +
                 std::to_string(end) + ")");
}

Status CheckPrefix(Position length) {
  return length >= 0 ? Status::Ok() : Invalid("a prefix of length " + std::to_string(length));
}

std::string SizesText(const CacheOptions& options) {
  return "max_sequences " + std::to_string(options.max_sequences) + " x capacity " +
         std::to_string(options.capacity);
}

}  // namespace kvcache
