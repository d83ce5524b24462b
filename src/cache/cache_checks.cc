#include "cache/cache_checks.h"

#include "base/errors.h"
#include "base/strings.h"
#include "cache/pass/history_mask.h"

namespace kvcache {

Status CheckReady(CacheState state) {
  if (state == CacheState::kReady) return Status::Ok();
  return Invalid(state == CacheState::kNew ? "the cache is not initialised; call Init first"
                                           : "the cache is closed; make a new one");
}

Status CheckConfig(const CacheConfig& config) {
  for (const int padding : {config.cell_padding, config.batch_padding}) {
    if (padding < 1 || padding > kMaxPadding) {
      return Invalid(StrCat("padding is ", padding, "; must be in [1, ", kMaxPadding, "]"));
    }
  }
  if (config.v_transposed && config.layout != KvLayout::kPlain) {
    return Invalid("v_transposed is set for the tiled layout; it needs the plain layout");
  }
  if (!HistoryMask::Supports(config.mask_type)) {
    return Unsupported(
        StrCat("mask_type is ", InfoOf(config.mask_type).name, "; must be f32 or f16"));
  }
  return Status::Ok();
}

Status CheckSizes(const CacheOptions& options) {
  if (options.max_sequences >= 1 && options.capacity >= 1 && options.max_batch >= 1) {
    if (options.cells == 0 || options.cells >= options.max_batch) return Status::Ok();
    return Invalid(StrCat("cells is ", options.cells, "; must be 0, or at least max_batch, ",
                          options.max_batch));
  }
  return Invalid(StrCat("max_sequences is ", options.max_sequences, ", capacity is ",
                        options.capacity, ", max_batch is ", options.max_batch,
                        "; each must be at least 1"));
}

Status CheckTypes(const KvBackend& backend, const CacheOptions& options,
                  const CacheConfig& config) {
  KVCACHE_RETURN_IF_ERROR(backend.CheckKvTypes(options.k_type, options.v_type, config.layout));
  if (config.v_transposed && InfoOf(options.v_type).block_size > 1) {
    return Unsupported(
        StrCat("v_type is ", InfoOf(options.v_type).name, "; a block type cannot be transposed"));
  }
  return Status::Ok();
}

Status CheckSequence(SequenceId id, const CacheOptions& options) {
  if (Index(id) >= 0 && Index(id) < options.max_sequences) return Status::Ok();
  return Invalid(StrCat("sequence ", Index(id), " is not in [0, ", options.max_sequences, ")"));
}

namespace {

// Checks that draft i of the batch follows its parent.
Status CheckParent(const Batch& batch, std::size_t i) {
  const std::int32_t parent = batch.parents[i];
  if (parent == Drafts::kNone) return Status::Ok();
  if (parent < 0 || static_cast<std::size_t>(parent) >= i) {
    return Invalid(StrCat("the parent of draft ", i, " is ", parent,
                          "; must be a lower batch index, or -1 for the sequence's end"));
  }
  if (batch.sequences[parent] != batch.sequences[i]) {
    return Invalid(StrCat("draft ", i, " is of sequence ", Index(batch.sequences[i]),
                          ", its parent ", parent, " of sequence ", Index(batch.sequences[parent]),
                          "; must be the same"));
  }
  if (std::int64_t{batch.positions[parent]} + 1 != batch.positions[i]) {
    return Invalid(StrCat("draft ", i, " is at position ", batch.positions[i],
                          "; must be one after its parent, which is at ", batch.positions[parent]));
  }
  return Status::Ok();
}

Status CheckDrafts(const Batch& batch) {
  if (batch.parents.empty()) return Status::Ok();
  if (batch.parents.size() != batch.size()) {
    return Invalid(StrCat("the batch has ", batch.size(), " tokens and ", batch.parents.size(),
                          " parents; must be as many, or none"));
  }
  if (!batch.items.empty()) {
    return Invalid("a batch of drafts has multimodal items; pass them in a batch without parents");
  }
  for (std::size_t i = 0; i < batch.size(); ++i) KVCACHE_RETURN_IF_ERROR(CheckParent(batch, i));
  return Status::Ok();
}

}  // namespace

Status CheckBatch(const Batch& batch, const CacheOptions& options) {
  if (batch.sequences.size() != batch.size()) {
    return Invalid(StrCat("the batch has ", batch.size(), " positions and ", batch.sequences.size(),
                          " sequences; must be as many"));
  }
  if (batch.size() == 0) return Invalid("the batch is empty; must have at least 1 token");
  if (batch.size() > static_cast<std::size_t>(options.max_batch)) {
    return Invalid(
        StrCat("the batch has ", batch.size(), " tokens; max_batch is ", options.max_batch));
  }
  for (const SequenceId id : batch.sequences) KVCACHE_RETURN_IF_ERROR(CheckSequence(id, options));
  for (const Position position : batch.positions) {
    if (position < 0 || position == kEndOfSequence) {
      return Invalid(StrCat("position is ", position, "; must be in [0, ", kEndOfSequence, ")"));
    }
  }
  for (const MultimodalItem& item : batch.items) {
    if (item.index < 0 || static_cast<std::size_t>(item.index) >= batch.size()) {
      return Invalid(StrCat("item index ", item.index, " is not in the batch of ", batch.size()));
    }
  }
  return CheckDrafts(batch);
}

Status CheckQueries(std::span<const std::int32_t> queries, const Drafts& drafts,
                    std::int64_t batch) {
  for (const std::int32_t query : queries) {
    if (query < 0 || query >= batch) {
      return Invalid(StrCat("query ", query, " is not in the batch of ", batch));
    }
  }
  if (queries.empty() || drafts.empty()) return Status::Ok();
  return Unsupported("SetCausal in a pass of drafts; a draft never sees later tokens");
}

Status CheckRange(Position begin, Position end) {
  if (begin >= 0 && end >= begin) return Status::Ok();
  return Invalid(StrCat("the range of positions is [", begin, ", ", end,
                        "); begin must be at least 0, and end at least begin"));
}

Status CheckPrefix(Position length) {
  if (length >= 0) return Status::Ok();
  return Invalid(StrCat("prefix length is ", length, "; must be at least 0"));
}

Status CheckSnapshotRange(SequenceId id, Position begin, Position end, Position length) {
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  if (end <= length) return Status::Ok();
  return Invalid(StrCat("a snapshot of positions [", begin, ", ", end, ") of sequence ", Index(id),
                        ", which has ", length, " tokens"));
}

Status CheckTarget(SequenceId id, Position target, Position max) {
  if (target >= 0 && target <= max) return Status::Ok();
  return Invalid(StrCat("restoring sequence ", Index(id), " to ", target,
                        " tokens; must be in [0, ", max, "]"));
}

std::string SizesText(const CacheOptions& options) {
  if (options.cells > 0) return StrCat("cells ", options.cells);
  return StrCat("max_sequences ", options.max_sequences, " x capacity ", options.capacity);
}

Status CheckCaptures(SequenceId id, Position length, std::size_t scheduled, Position begin,
                     std::span<const Position> lengths) {
  if (scheduled > 0) {
    return Invalid(StrCat("sequence ", Index(id), " has ", scheduled,
                          " scheduled captures; call TakeCaptures first"));
  }
  if (begin != kEachFromZero && begin < length) {
    return Invalid(StrCat("captures of sequence ", Index(id), " begin at ", begin,
                          "; must be at least its length, ", length));
  }
  Position min = std::max(begin, length);
  for (const Position capture : lengths) {
    if (capture < min || capture == kEndOfSequence) {
      return Invalid(StrCat("a capture at length ", capture, " of sequence ", Index(id),
                            "; must be at least ", min, ": captures ascend from ",
                            std::max(begin, length)));
    }
    min = capture + 1;
  }
  return Status::Ok();
}

Status CheckNeighbors(const Snapshot& parent, const Snapshot& child) {
  if (&parent != &child && parent.end() == child.begin()) return Status::Ok();
  return Invalid(StrCat("merging the snapshots [", parent.begin(), ", ", parent.end(), ") and [",
                        child.begin(), ", ", child.end(),
                        "); the second must begin where the first ends"));
}

Status CheckInside(const Snapshot& snapshot, Position position) {
  if (position > snapshot.begin() && position < snapshot.end()) return Status::Ok();
  return Invalid(StrCat("splitting the snapshot [", snapshot.begin(), ", ", snapshot.end(), ") at ",
                        position, "; must be above ", snapshot.begin(), " and below ",
                        snapshot.end()));
}

}  // namespace kvcache
