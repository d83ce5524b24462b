// The tree of prefixes that decoding sequences share: the keys and values of a shared prefix are
// read once for the rows of all its sequences.
//
//   histories   a  0 ──────────── 1024 ─ 1100        node 0: splits 0 to 3, rows of a, b and c
//               b  same cells ─── 1024 ─ 1060        node 1: split 4, rows of a
//               c  same cells ─── 1024 ─ 1029        node 2: split 4, rows of b   …
//
// A node is a range of whole splits and the sequences that have them in common. A sequence's splits
// are those on the path from the root to its leaf.
//
// Sharing has a price: merges go in ascending order, so each split behind a shared node leaves a
// partial result of its own. The tree shares a prefix only where that pays.
//
// Thread safety: Build from one thread; then read-only. Allocates only while it grows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/attention/attention_split.h"
#include "kvcache/kv.h"
#include "kvcache/visibility.h"

namespace kvcache::cpu {

// Decode tasks per thread: enough that threads of unequal speed end together.
inline constexpr std::int64_t kTasksPerThread = 4;

// One sequence's share of the batch.
struct SequencePlan {
  std::int32_t history = 0;      // index into Visibility::histories
  std::int32_t first_token = 0;  // index into AttentionPlan::tokens()
  std::int32_t tokens = 0;
  bool decode = false;   // few rows: the path of decode; otherwise that of prefill
  PositionRange seen{};  // positions that any token sees, cut at the history's end
  // The rest is for decode only.
  std::int32_t shared = 0;       // whole splits in common with the sequence before
  std::int32_t leaf = -1;        // index of its last node; -1: it sees nothing
  std::int32_t splits = 0;       // splits of all its nodes
  std::int32_t first_merge = 0;  // index of its first KV head among the merges of all sequences
};

// A range of splits and the neighbouring sequences that read them together, mostly one.
struct PrefixNode {
  std::int32_t parent = -1;         // the node whose splits come before these; -1: the root
  std::int32_t first_sequence = 0;  // index into the sequences given to Build
  std::int32_t sequences = 0;
  std::int32_t first_token = 0;  // index into AttentionPlan::tokens(): tokens of these sequences
  std::int32_t tokens = 0;
  PositionRange seen{};          // positions of the node that any token sees
  std::int32_t first_split = 0;  // index into PrefixTree::splits()
  std::int32_t splits = 0;       // splits that hold a position that may be seen; at least 1
  std::int32_t merged = 1;       // splits of a KV head's first task, which merges them
  std::int64_t partials = 0;     // offset of its partial results in the workspace, in floats

  // Partial results of a KV head: one for the splits of the first task, one for each other split.
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
  // Builds the tree of the decoding sequences and sets their fields `shared`, `leaf` and `splits`.
  // REQUIRES: decoding sequences come first, ordered by SharingOrder, their tokens one after
  // another.
  void Build(const PrefixTreeCall& call, std::span<SequencePlan> sequences);

  std::span<PrefixNode> all() { return nodes_; }
  std::span<const PrefixNode> all() const { return nodes_; }
  std::span<const std::int32_t> splits() const { return splits_; }

 private:
  // A subtree under construction: neighbouring sequences, the number of leading splits that have
  // a node already, and the last of these nodes.
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

  void CompareNeighbors(const PrefixTreeCall& call, std::span<SequencePlan> decode);
  void BoundRows(const PrefixTreeCall& call, std::span<const SequencePlan> decode);
  bool Pays(const PrefixTreeCall& call, const Branch& branch, std::int32_t shared);
  void AddBranch(const PrefixTreeCall& call, Branch branch);
  void AddPieces(const PrefixTreeCall& call, const Branch& branch, std::int32_t shared);
  void AddNode(const PrefixTreeCall& call, Position end, Branch& branch);
  void AddSplits(std::span<const HistoryRun> runs, PrefixNode& node);

  std::vector<PrefixNode> nodes_;
  std::vector<std::int32_t> splits_;
  std::int32_t max_tokens_ = 0;     // of a node with several sequences
  std::int64_t partials_left_ = 0;  // bytes of partial results that sharing may still add
};

}  // namespace kvcache::cpu
