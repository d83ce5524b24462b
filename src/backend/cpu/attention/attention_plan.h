// How one attention call is cut into tasks: by (node of splits, KV head, splits) where sequences
// have few rows, by (sequence, KV head, block of query tokens) where they have many.
//
// The cut decides speed alone; results are the same for any (docs/design/exactness.md).
// Thread safety: Build from one thread; then read-only. Allocates only while it grows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/prefix_tree.h"
#include "kvcache/kv_backend.h"

namespace kvcache::cpu {

struct AttentionTask {
  enum class Kind : std::uint8_t { kPrefill, kDecode, kZeros };
  Kind kind = Kind::kPrefill;
  std::int32_t of = 0;  // splits: a node; else a sequence
  std::int32_t kv_head = 0;
  std::int32_t part = 0;   // splits: the first, counted from the node's; block: which
  std::int32_t count = 0;  // splits: how many
};

class AttentionPlan {
 public:
  // REQUIRES: a visibility that CheckAttention accepted; group = heads / kv_heads.
  void Build(const LayerKv& layer, int group, int threads, const Visibility& visibility);

  std::span<const QueryToken> tokens() const { return tokens_; }
  std::span<const SequencePlan> sequences() const { return sequences_; }
  std::span<const PrefixNode> nodes() const { return tree_.all(); }
  std::span<const std::int32_t> splits() const { return tree_.splits(); }
  std::span<const AttentionTask> tasks() const { return tasks_; }
  int block_tokens() const { return tile_tokens_; }
  std::int64_t prefill_rows() const { return prefill_rows_; }      // of the largest block
  std::int64_t decode_rows() const { return decode_rows_; }        // of the largest node
  std::int64_t partial_floats() const { return partial_floats_; }  // of all nodes
  // Splits that a (sequence, KV head) still waits for; tasks count it down atomically.
  std::int32_t& Waiting(const SequencePlan& sequence, int kv_head) {
    return waiting_[static_cast<std::size_t>(sequence.first_merge + kv_head)];
  }

  // REQUIRES: of this plan.
  template <class Part>  // a sequence or a node
  std::span<const QueryToken> TokensOf(const Part& part) const {
    return tokens().subspan(static_cast<std::size_t>(part.first_token),
                            static_cast<std::size_t>(part.tokens));
  }
  std::span<const QueryToken> TileOf(const SequencePlan& sequence, int block) const;
  std::span<const SequencePlan> SequencesOf(const PrefixNode& node) const {
    return sequences().subspan(static_cast<std::size_t>(node.first_sequence),
                               static_cast<std::size_t>(node.sequences));
  }

 private:
  void ListSequences(const Visibility& visibility);
  void OrderSequences(const LayerKv& layer, int group, const Visibility& visibility);
  void AddTokens(const Visibility& visibility);
  void AddPrefillTasks(int kv_heads, int group);
  void AddDecodeTasks(const LayerKv& layer, int group, int threads);
  void AddMerges(int kv_heads);

  std::vector<QueryToken> tokens_;  // in the order of sequences(); of one, in batch order
  std::vector<SequencePlan> sequences_;
  std::vector<std::int32_t> sequence_of_;  // [histories]; -1: none
  PrefixTree tree_;
  std::vector<AttentionTask> tasks_;
  std::vector<std::int32_t> waiting_;
  int tile_tokens_ = 1;
  std::int64_t prefill_rows_ = 0;
  std::int64_t decode_rows_ = 0;
  std::int64_t partial_floats_ = 0;
};

// Ok, or what contradicts the contract of KvBackend::Attention, with both sides' numbers.
Status CheckAttention(const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                      const AttentionOptions& options, const TensorView& out);

}  // namespace kvcache::cpu
