#include "backend/cpu/attention/attention_plan.h"

#include <algorithm>

#include "backend/cpu/attention/history_sharing.h"
#include "backend/cpu/kv/cell_nodes.h"

namespace kvcache::cpu {
namespace {

// With at most this many rows of one KV head the decode kernels are used, which read keys and
// values as they are stored. With more rows it pays to widen them first, as the prefill kernel
// does.
constexpr int kMaxDecodeRows = 32;
// Rows of a tile of queries: enough to pay for the widening, few enough that queries and sums stay
// in the second-level cache.
constexpr int kTileRows = 256;

}  // namespace

// Lists the histories that have query tokens.
void AttentionPlan::ListSequences(const Visibility& visibility) {
  sequences_.clear();
  sequence_of_.assign(visibility.histories.size(), -1);
  for (const std::int32_t history : visibility.history_of_query) {
    std::int32_t& sequence = sequence_of_[static_cast<std::size_t>(history)];
    if (sequence < 0) {
      sequence = static_cast<std::int32_t>(sequences_.size());
      sequences_.push_back({.history = history});
    }
    ++sequences_[static_cast<std::size_t>(sequence)].tokens;
  }
}

// Puts decoding sequences first and those that share a prefix next to each other. Batches nearly
// always have this order already.
void AttentionPlan::OrderSequences(const LayerKv& layer, int group, const Visibility& visibility) {
  for (SequencePlan& sequence : sequences_) {
    sequence.decode =
        layer.layout == KvLayout::kTiled &&
        (sequence.tokens == 1 || std::int64_t{sequence.tokens} * group <= kMaxDecodeRows);
  }
  const auto runs = [&](const SequencePlan& sequence) {
    return visibility.histories[static_cast<std::size_t>(sequence.history)];
  };
  const auto before = [&](const SequencePlan& a, const SequencePlan& b) {
    if (!a.decode || !b.decode) return a.decode && !b.decode;
    return SharingOrder(runs(a), runs(b));
  };
  if (std::is_sorted(sequences_.begin(), sequences_.end(), before)) return;
  std::sort(sequences_.begin(), sequences_.end(), before);
}

// Groups the query tokens by sequence, within a sequence in batch order.
void AttentionPlan::AddTokens(const Visibility& visibility) {
  std::int32_t first = 0;
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    SequencePlan& sequence = sequences_[i];
    sequence_of_[static_cast<std::size_t>(sequence.history)] = static_cast<std::int32_t>(i);
    sequence.first_token = first;
    sequence.seen = {kEndOfSequence, 0};
    first += sequence.tokens;
    sequence.tokens = 0;
  }
  tokens_.resize(visibility.positions.size());
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const auto history = static_cast<std::size_t>(visibility.history_of_query[i]);
    SequencePlan& sequence = sequences_[static_cast<std::size_t>(sequence_of_[history])];
    const PositionRange seen = VisibleRange(visibility, i);
    tokens_[static_cast<std::size_t>(sequence.first_token + sequence.tokens)] = {
        static_cast<std::int32_t>(i), visibility.positions[i], seen};
    ++sequence.tokens;
    sequence.seen = Union(sequence.seen, seen);
  }
  for (SequencePlan& sequence : sequences_) {
    const auto runs = visibility.histories[static_cast<std::size_t>(sequence.history)];
    const Position end = runs.empty() ? 0 : runs.back().position + runs.back().length;
    sequence.seen.end = std::min(sequence.seen.end, end);
  }
}

// The last tile of a sequence sees the most positions. It comes first, so that it does not keep one
// thread busy after all others have finished.
void AttentionPlan::AddPrefillTasks(int kv_heads, int group) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const SequencePlan& sequence = sequences_[i];
    if (sequence.decode) continue;
    prefill_rows_ = std::max<std::int64_t>(
        prefill_rows_, std::int64_t{std::min(sequence.tokens, tile_tokens_)} * group);
    const std::int32_t blocks = (sequence.tokens + tile_tokens_ - 1) / tile_tokens_;
    for (std::int32_t block = blocks - 1; block >= 0; --block) {
      for (std::int32_t head = 0; head < kv_heads; ++head) {
        tasks_.push_back(
            {AttentionTask::Kind::kPrefill, static_cast<std::int32_t>(i), head, block});
      }
    }
  }
}

// Neighbouring splits are one task. So the splits that a task prefetches are mostly its own, and
// the first task of a KV head leaves a single partial result. A split with up to eight rows costs
// as much as reading it; with more rows the cost grows with the rows.
void AttentionPlan::AddDecodeTasks(const LayerKv& layer, int group, int threads) {
  const int kv_heads = layer.shape.kv_heads;
  const std::int64_t tasks = threads * kTasksPerThread;
  const auto weight = [&](const PrefixNode& node) {
    return std::max<std::int64_t>(std::int64_t{node.tokens} * group, 8);
  };
  std::int64_t all = 0;
  for (const PrefixNode& node : nodes()) all += node.splits * weight(node);
  // A shorter history can have more tasks and nodes (at most two for each sequence), so the largest possible number is
  // reserved: a warm call must not allocate.
  tasks_.reserve(tasks_.size() + 4 * sequences_.size() * static_cast<std::size_t>(kv_heads) +
                 static_cast<std::size_t>(2 * tasks));
  for (std::size_t i = 0; i < nodes().size(); ++i) {
    PrefixNode& node = tree_.all()[i];
    const std::int64_t rows = std::int64_t{node.tokens} * group;
    const auto at_once =
        static_cast<std::int32_t>(std::max<std::int64_t>(all * kv_heads / tasks / weight(node), 1));
    decode_rows_ = std::max(decode_rows_, rows);
    if (node.parent < 0) node.merged = std::min(at_once, node.splits);
    node.partials = partial_floats_;
    partial_floats_ +=
        std::int64_t{node.partials_of_head()} * rows * kv_heads * PartialStride(layer.shape.v_dim);
    for (std::int32_t head = 0; head < kv_heads; ++head) {
      for (std::int32_t split = 0; split < node.splits; split += at_once) {
        tasks_.push_back({AttentionTask::Kind::kDecode, static_cast<std::int32_t>(i), head, split,
                          std::min(at_once, node.splits - split)});
      }
    }
  }
}

// Adds a merge for each KV head of a decoding sequence, and a task that writes zeros if the
// sequence sees nothing.
void AttentionPlan::AddMerges(int kv_heads) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    SequencePlan& sequence = sequences_[i];
    if (!sequence.decode) continue;
    sequence.first_merge = static_cast<std::int32_t>(waiting_.size());
    waiting_.insert(waiting_.end(), static_cast<std::size_t>(kv_heads), sequence.splits);
    if (sequence.splits > 0) continue;
    for (std::int32_t head = 0; head < kv_heads; ++head) {
      tasks_.push_back({AttentionTask::Kind::kZeros, static_cast<std::int32_t>(i), head});
    }
  }
}

void AttentionPlan::Build(const LayerKv& layer, int group, int threads,
                          const Visibility& visibility) {
  tasks_.clear();
  waiting_.clear();
  tile_tokens_ = std::max(1, kTileRows / group);
  prefill_rows_ = 0;
  decode_rows_ = 0;
  partial_floats_ = 0;
  ListSequences(visibility);
  OrderSequences(layer, group, visibility);
  AddTokens(visibility);
  tree_.Build({layer, group, threads, visibility}, sequences_);
  AddPrefillTasks(layer.shape.kv_heads, group);
  AddDecodeTasks(layer, group, threads);
  AddMerges(layer.shape.kv_heads);
  grows_ = std::all_of(sequences_.begin(), sequences_.end(), [&](const SequencePlan& sequence) {
    return sequence.decode && sequence.tokens == 1 && sequence.leaf >= 0 &&
           nodes()[static_cast<std::size_t>(sequence.leaf)].sequences == 1;
  });
}

// Splits, nodes and tasks stay as they are.
void AttentionPlan::Grow() {
  for (QueryToken& token : tokens_) {
    ++token.position;
    ++token.seen.end;
  }
  for (SequencePlan& sequence : sequences_) {
    ++sequence.seen.end;
    ++tree_.all()[static_cast<std::size_t>(sequence.leaf)].seen.end;
  }
}

int AttentionPlan::NodeOf(const AttentionTask& task, const ThreadPool& pool, const LayerKv& layer,
                          const Visibility& visibility) const {
  if (task.kind != AttentionTask::Kind::kDecode) {
    return HasNodeForHeads(pool, layer) ? NodeOfHead(pool, layer, task.kv_head)
                                        : task.part % pool.nodes();
  }
  const PrefixNode& node = nodes()[static_cast<std::size_t>(task.of)];
  const SequencePlan& sequence = SequencesOf(node).front();
  const std::int32_t split = splits()[static_cast<std::size_t>(node.first_split + task.part)];
  const std::int64_t begin = std::max<std::int64_t>(node.seen.begin, SplitBase(split));
  const auto& runs = visibility.histories[static_cast<std::size_t>(sequence.history)];
  return NodeOfCells(pool, layer, task.kv_head, FirstCell(runs, begin));
}

ThreadPool::Ends AttentionPlan::SortByNodes(const ThreadPool& pool, const LayerKv& layer,
                                            const Visibility& visibility) {
  // As many as tasks_ may have, so that a warm call does not allocate.
  unsorted_.reserve(tasks_.capacity());
  order_.reserve(tasks_.capacity());
  unsorted_.assign(tasks_.begin(), tasks_.end());
  order_.resize(tasks_.size());
  const ThreadPool::Ends ends = SortByNode(pool, order_, [&](std::int32_t task) {
    return NodeOf(unsorted_[static_cast<std::size_t>(task)], pool, layer, visibility);
  });
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    tasks_[i] = unsorted_[static_cast<std::size_t>(order_[i])];
  }
  return ends;
}

std::span<const QueryToken> AttentionPlan::TileOf(const SequencePlan& sequence, int block) const {
  const int first = block * tile_tokens_;
  const int count = std::min(tile_tokens_, sequence.tokens - first);
  return TokensOf(sequence).subspan(static_cast<std::size_t>(first),
                                    static_cast<std::size_t>(count));
}

}  // namespace kvcache::cpu
