// How one attention call is cut into tasks: by (sequence, KV head, splits) where a sequence has
// few rows, by (sequence, KV head, block of query tokens) where it has many.
//
// The cut decides speed alone; results are the same for any (docs/design/exactness.md).
// Thread safety: Build from one thread; then read-only. Allocates only while it grows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/attention_kernels.h"
#include "kvcache/backend.h"

namespace kvcache::cpu {

// One sequence's share of the batch.
struct SequencePlan {
  std::int32_t history = 0;      // index into Visibility::histories
  std::int32_t first_token = 0;  // in tokens()
  std::int32_t tokens = 0;
  bool few = false;
  PositionRange seen;            // by any token
  std::int32_t first_split = 0;  // few: in splits()
  std::int32_t splits = 0;       // few: how many hold something that may be seen
  std::int32_t merged = 0;       // few: splits of a KV head's first task, which merges them
  std::int64_t partials = 0;     // few: floats before this sequence's in the scratch
  std::int32_t first_merge = 0;  // few: its first KV head among all that wait

  // few: partial results of a KV head, one of the first task's splits and one of each other.
  std::int32_t partials_of_head() const { return splits - merged + 1; }
};

struct AttentionTask {
  std::int32_t sequence = 0;
  std::int32_t kv_head = 0;
  std::int32_t part = 0;   // few: first split, counted from the sequence's first; many: block
  std::int32_t count = 0;  // few: splits
};

class AttentionPlan {
 public:
  // REQUIRES: a visibility that CheckAttention accepted; group = heads / kv_heads.
  void Build(const LayerKv& layer, int group, int threads, const Visibility& visibility);

  std::span<const QueryToken> tokens() const { return tokens_; }
  std::span<const SequencePlan> sequences() const { return sequences_; }
  std::span<const std::int32_t> splits() const { return splits_; }
  std::span<const AttentionTask> tasks() const { return tasks_; }
  int block_tokens() const { return block_tokens_; }
  std::int64_t block_rows() const { return block_rows_; }          // of the largest block
  std::int64_t split_rows() const { return split_rows_; }          // most of one sequence's few
  std::int64_t partial_floats() const { return partial_floats_; }  // of all sequences
  // Splits that a (sequence, KV head) still waits for; tasks count it down atomically.
  std::int32_t& Waiting(const SequencePlan& sequence, int kv_head) {
    return waiting_[static_cast<std::size_t>(sequence.first_merge + kv_head)];
  }
  std::span<const QueryToken> BlockOf(const SequencePlan& sequence, int block) const;

 private:
  void GroupTokens(const Visibility& visibility);
  void AddTokens(const Visibility& visibility);
  void PlanSequence(const LayerKv& layer, int group, const Visibility& visibility,
                    SequencePlan& sequence);
  void PlanSplits(std::span<const HistoryRun> runs, SequencePlan& sequence);
  void AddBlockTasks(int kv_heads);
  void AddSplitTasks(const LayerKv& layer, int group, int threads);

  std::vector<QueryToken> tokens_;  // by sequence, in batch order
  std::vector<SequencePlan> sequences_;
  std::vector<std::int32_t> splits_;
  std::vector<AttentionTask> tasks_;
  std::vector<std::int32_t> waiting_;
  int block_tokens_ = 1;
  std::int64_t block_rows_ = 0;
  std::int64_t split_rows_ = 0;
  std::int64_t partial_floats_ = 0;
};

// Ok, or what contradicts the contract of KvBackend::Attention, with both sides' numbers.
Status CheckAttention(const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                      const AttentionOptions& options, const TensorView& out);

}  // namespace kvcache::cpu
