// How one attention call is cut into tasks: by (stretch of splits, KV head, splits) where sequences
// have few rows, by (sequence, KV head, block of query tokens) where they have many.
//
//   histories   a  0 ──────────── 1024 ─ 1100        stretch 0: splits 0 to 3, rows of a, b and c
//               b  same cells ─── 1024 ─ 1060        stretch 1: split 4, rows of a
//               c  same cells ─── 1024 ─ 1029        stretch 2: split 4, rows of b   …
//
// What histories share is read once for all of them, in whole splits. So sequences with a common
// prefix cost what they have of their own, and a tree of drafted tokens the rows of its nodes.
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
  PositionRange seen{};            // by any token
  std::int32_t shared = 0;         // few: whole splits in common with the sequence before
  std::int32_t last_stretch = -1;  // few: index into stretches(); -1: nothing is seen
  std::int32_t splits = 0;         // few: of all its stretches
  std::int32_t first_merge = 0;    // few: its first KV head among all that wait
};

// Neighbouring splits and the sequences that have them in common, mostly one.
struct Stretch {
  std::int32_t before = -1;         // the stretch whose splits come before these; -1: none
  std::int32_t first_sequence = 0;  // in sequences()
  std::int32_t sequences = 0;
  std::int32_t first_token = 0;  // in tokens(): all of these sequences
  std::int32_t tokens = 0;
  PositionRange seen{};          // of its positions, by any token
  std::int32_t first_split = 0;  // in splits()
  std::int32_t splits = 0;       // how many hold something that may be seen; 1 at least
  std::int32_t merged = 1;       // splits of a KV head's first task; it merges them
  std::int64_t partials = 0;     // floats before this stretch's in the scratch

  // Partial results of a KV head, one of the first task's splits and one of each other.
  std::int32_t partials_of_head() const { return splits - merged + 1; }
};

struct AttentionTask {
  enum class Kind : std::uint8_t { kBlock, kSplits, kZeros };
  Kind kind = Kind::kBlock;
  std::int32_t of = 0;  // splits: a stretch; else a sequence
  std::int32_t kv_head = 0;
  std::int32_t part = 0;   // splits: the first, counted from the stretch's; block: which
  std::int32_t count = 0;  // splits: how many
};

class AttentionPlan {
 public:
  // REQUIRES: a visibility that CheckAttention accepted; group = heads / kv_heads.
  void Build(const LayerKv& layer, int group, int threads, const Visibility& visibility);

  std::span<const QueryToken> tokens() const { return tokens_; }
  std::span<const SequencePlan> sequences() const { return sequences_; }
  std::span<const Stretch> stretches() const { return stretches_; }
  std::span<const std::int32_t> splits() const { return splits_; }
  std::span<const AttentionTask> tasks() const { return tasks_; }
  int block_tokens() const { return block_tokens_; }
  std::int64_t block_rows() const { return block_rows_; }          // of the largest block
  std::int64_t split_rows() const { return split_rows_; }          // of the largest stretch
  std::int64_t partial_floats() const { return partial_floats_; }  // of all stretches
  // Splits that a (sequence, KV head) still waits for; tasks count it down atomically.
  std::int32_t& Waiting(const SequencePlan& sequence, int kv_head) {
    return waiting_[static_cast<std::size_t>(sequence.first_merge + kv_head)];
  }

  // REQUIRES: of this plan.
  template <class Part>  // a sequence or a stretch
  std::span<const QueryToken> TokensOf(const Part& part) const {
    return tokens().subspan(static_cast<std::size_t>(part.first_token),
                            static_cast<std::size_t>(part.tokens));
  }
  std::span<const QueryToken> BlockOf(const SequencePlan& sequence, int block) const;
  std::span<const SequencePlan> SequencesOf(const Stretch& stretch) const {
    return sequences().subspan(static_cast<std::size_t>(stretch.first_sequence),
                               static_cast<std::size_t>(stretch.sequences));
  }

 private:
  // Some neighbouring sequences, the splits that are planned for them, and the last stretch of
  // these.
  struct Branch {
    std::int32_t first = 0;
    std::int32_t end = 0;
    std::int32_t splits = 0;
    std::int32_t last_stretch = -1;
  };

  void ListSequences(const Visibility& visibility);
  void OrderBySharing(const Visibility& visibility);
  void AddTokens(const Visibility& visibility);
  void ChooseFew(const LayerKv& layer, int group, const Visibility& visibility);
  void AddBranches(const Visibility& visibility);
  void AddBranch(const Visibility& visibility, Branch branch);
  void AddStretch(const Visibility& visibility, Position end, Branch& branch);
  void AddSplits(std::span<const HistoryRun> runs, Stretch& stretch);
  void AddBlockTasks(int kv_heads, int group);
  void AddSplitTasks(const LayerKv& layer, int group, int threads);
  void AddMerges(int kv_heads);

  std::vector<QueryToken> tokens_;  // by sequence, in batch order
  std::vector<SequencePlan> sequences_;
  std::vector<std::int32_t> sequence_of_;  // [histories]; -1: none
  std::vector<Stretch> stretches_;
  std::vector<std::int32_t> splits_;
  std::vector<AttentionTask> tasks_;
  std::vector<std::int32_t> waiting_;
  int block_tokens_ = 1;
  std::int32_t most_shared_tokens_ = 0;
  std::int64_t block_rows_ = 0;
  std::int64_t split_rows_ = 0;
  std::int64_t partial_floats_ = 0;
};

// Ok, or what contradicts the contract of KvBackend::Attention, with both sides' numbers.
Status CheckAttention(const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                      const AttentionOptions& options, const TensorView& out);

}  // namespace kvcache::cpu
