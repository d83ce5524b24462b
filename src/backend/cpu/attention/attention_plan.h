// The tasks of one attention call: (prefix node, KV head, splits) for sequences that decode,
// (sequence, KV head, tile of query tokens) for sequences that prefill.
//
// The cut only affects speed; the results are the same for any cut (docs/design/exactness.md).
// Thread safety: Build from one thread; then read-only. Allocates only while it grows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/prefix_tree.h"
#include "kvcache/kv_backend.h"
#include "kvcache/visibility.h"
#include "platform/thread_pool.h"

namespace kvcache::cpu {

struct AttentionTask {
  enum class Kind : std::uint8_t { kPrefill, kDecode, kZeros };
  Kind kind = Kind::kPrefill;
  std::int32_t of = 0;  // index of a node for kDecode, of a sequence otherwise
  std::int32_t kv_head = 0;
  std::int32_t part = 0;   // kDecode: the first split, counted from the node's; kPrefill: the tile
  std::int32_t count = 0;  // kDecode: the number of splits
};

class AttentionPlan {
 public:
  // REQUIRES: a visibility that CheckAttention accepted; group = heads / kv_heads.
  void Build(const LayerKv& layer, int group, int threads, const Visibility& visibility);

  // Sorts the tasks by the memory nodes that their cells are on (cell_nodes.h), and returns where each node's tasks end.
  // A tile of queries of a layer with fewer heads than nodes reads cells of all nodes. REQUIRES: Build, with the same
  // layer and visibility.
  ThreadPool::Ends SortByNodes(const ThreadPool& pool, const LayerKv& layer,
                               const Visibility& visibility);

  // Returns whether Grow may be called: each sequence has one token and a node of its own at its end.
  bool grows() const { return grows_; }
  // Makes the plan that of the same sequences with a token more each, which is their query. REQUIRES: grows(); each
  // query was the last token of its sequence; none begins a split; no windows and chunks.
  void Grow();

  std::span<const QueryToken> tokens() const { return tokens_; }
  std::span<const SequencePlan> sequences() const { return sequences_; }
  std::span<const PrefixNode> nodes() const { return tree_.all(); }
  std::span<const std::int32_t> splits() const { return tree_.splits(); }
  std::span<const AttentionTask> tasks() const { return tasks_; }
  std::int64_t prefill_rows() const { return prefill_rows_; }      // rows of the largest tile
  std::int64_t decode_rows() const { return decode_rows_; }        // rows of the largest node
  std::int64_t partial_floats() const { return partial_floats_; }  // partial results of all nodes
  // The number of splits that a (sequence, KV head) waits for. Tasks decrement it atomically; the last one sets it
  // to the sequence's splits again, for the next call.
  std::int32_t& Waiting(const SequencePlan& sequence, int kv_head) {
    return waiting_[static_cast<std::size_t>(sequence.first_merge + kv_head)];
  }

  // The tokens of a sequence or a node. REQUIRES: `part` belongs to this plan.
  template <class Part>
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
  int NodeOf(const AttentionTask& task, const ThreadPool& pool, const LayerKv& layer,
             const Visibility& visibility) const;

  std::vector<QueryToken> tokens_;  // in the order of sequences(), within one in batch order
  std::vector<SequencePlan> sequences_;
  std::vector<std::int32_t> sequence_of_;  // [histories]; -1: none
  PrefixTree tree_;
  std::vector<AttentionTask> tasks_;
  std::vector<AttentionTask> unsorted_;  // scratch
  std::vector<std::int32_t> order_;      // scratch
  std::vector<std::int32_t> waiting_;
  bool grows_ = false;
  int tile_tokens_ = 1;
  std::int64_t prefill_rows_ = 0;
  std::int64_t decode_rows_ = 0;
  std::int64_t partial_floats_ = 0;
};

// Return kInvalidArgument or kUnsupported if the arguments break the contract of
// KvBackend::Attention; the message has the numbers of both sides. `batch`: the tokens of q.
Status CheckAttention(const LayerKv& layer, const TensorView& q, const AttentionOptions& options,
                      const TensorView& out);
Status CheckVisibility(const LayerKv& layer, std::int64_t batch, const Visibility& visibility);

}  // namespace kvcache::cpu
