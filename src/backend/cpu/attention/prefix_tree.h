// What sequences of few rows read together: which of them share how much of their histories, and
// where it pays.
//
//   histories   a  0 ──────────── 1024 ─ 1100        node 0: splits 0 to 3, rows of a, b and c
//               b  same cells ─── 1024 ─ 1060        node 1: split 4, rows of a
//               c  same cells ─── 1024 ─ 1029        node 2: split 4, rows of b   …
//
// What is shared is read once for all rows, in whole splits. In return each split behind it leaves
// a partial result of its own, as merges go in ascending order.
//
// Thread safety: Build from one thread; then read-only. Allocates only while it grows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/attention/attention_split.h"
#include "kvcache/kv.h"

namespace kvcache::cpu {

// So many tasks of splits let threads of unequal speed end together.
inline constexpr std::int64_t kTasksPerThread = 4;

// One sequence's share of the batch.
struct SequencePlan {
  std::int32_t history = 0;      // index into Visibility::histories
  std::int32_t first_token = 0;  // in AttentionPlan::tokens()
  std::int32_t tokens = 0;
  bool decode = false;
  PositionRange seen{};          // by any token, of what its history holds
  std::int32_t shared = 0;       // few: whole splits in common with the sequence before
  std::int32_t leaf = -1;        // few: of those that it is in; -1: nothing is seen
  std::int32_t splits = 0;       // few: of all its nodes
  std::int32_t first_merge = 0;  // few: its first KV head among all that wait
};

// Neighbouring splits and the sequences that read them together, mostly one.
struct PrefixNode {
  std::int32_t parent = -1;         // the node whose splits come before these; -1: none
  std::int32_t first_sequence = 0;  // among all
  std::int32_t sequences = 0;
  std::int32_t first_token = 0;  // in AttentionPlan::tokens(): those of these sequences
  std::int32_t tokens = 0;
  PositionRange seen{};          // of its positions, by any token
  std::int32_t first_split = 0;  // in splits()
  std::int32_t splits = 0;       // how many hold something that may be seen; 1 at least
  std::int32_t merged = 1;       // splits of a KV head's first task; it merges them
  std::int64_t partials = 0;     // floats before this node's in the workspace

  // Partial results of a KV head, one of the first task's splits and one of each other.
  std::int32_t partials_of_head() const { return splits - merged + 1; }
};

struct PrefixTreeCall {
  const LayerKv& layer;
  int group;  // heads / kv_heads
  int threads;
  const Visibility& visibility;
};

class PrefixTree {
 public:
  // `sequences`: those of few rows first, among these such that share a beginning as neighbours
  // (SharingOrder), their tokens one after another. Fills in what concerns nodes.
  void Build(const PrefixTreeCall& call, std::span<SequencePlan> sequences);

  std::span<PrefixNode> all() { return nodes_; }
  std::span<const PrefixNode> all() const { return nodes_; }
  std::span<const std::int32_t> splits() const { return splits_; }

 private:
  // Some neighbouring sequences, the splits that are planned for them, and the last node of
  // these.
  struct Branch {
    std::span<SequencePlan> sequences;
    std::int32_t first = 0;
    std::int32_t splits = 0;
    std::int32_t leaf = -1;

    Branch Part(std::size_t begin, std::size_t end) const {
      Branch part = *this;
      part.sequences = sequences.subspan(begin, end - begin);
      part.first += static_cast<std::int32_t>(begin);
      return part;
    }
  };

  void CompareNeighbours(const PrefixTreeCall& call, std::span<SequencePlan> decode);
  void BoundRows(const PrefixTreeCall& call, std::span<const SequencePlan> decode);
  bool Pays(const PrefixTreeCall& call, const Branch& branch, std::int32_t shared);
  void AddBranch(const PrefixTreeCall& call, Branch branch);
  void AddPieces(const PrefixTreeCall& call, const Branch& branch, std::int32_t shared);
  void AddNode(const PrefixTreeCall& call, Position end, Branch& branch);
  void AddSplits(std::span<const HistoryRun> runs, PrefixNode& node);

  std::vector<PrefixNode> nodes_;
  std::vector<std::int32_t> splits_;
  std::int32_t max_tokens_ = 0;     // of a node of several sequences
  std::int64_t partials_left_ = 0;  // bytes that splits behind shared ones may yet leave
};

}  // namespace kvcache::cpu
