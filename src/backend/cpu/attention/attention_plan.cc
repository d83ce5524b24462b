#include "backend/cpu/attention/attention_plan.h"

#include <algorithm>

#include "backend/cpu/attention/history_sharing.h"

namespace kvcache::cpu {
namespace {

// Up to so many rows of one KV head the keys and values are read as they lie; beyond, widening
// them first pays.
constexpr int kFewRows = 32;
// Rows of a block: enough to pay for the widening, few enough that queries and sums stay in
// the second-level cache.
constexpr int kBlockRows = 256;

}  // namespace

// The histories that have tokens.
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

// Those of few rows first, and of these such that share a beginning as neighbours: they nearly
// always are in order.
void AttentionPlan::OrderSequences(const LayerKv& layer, int group, const Visibility& visibility) {
  for (SequencePlan& sequence : sequences_) {
    sequence.few = layer.layout == KvLayout::kTiled &&
                   (sequence.tokens == 1 || std::int64_t{sequence.tokens} * group <= kFewRows);
  }
  const auto runs = [&](const SequencePlan& sequence) {
    return visibility.histories[static_cast<std::size_t>(sequence.history)];
  };
  const auto before = [&](const SequencePlan& a, const SequencePlan& b) {
    if (!a.few || !b.few) return a.few && !b.few;
    return SharingOrder(runs(a), runs(b));
  };
  if (std::is_sorted(sequences_.begin(), sequences_.end(), before)) return;
  std::sort(sequences_.begin(), sequences_.end(), before);
}

// Tokens of one sequence end up together, in the batch's order.
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

// The last block of a sequence sees the most: it comes first, so that no thread is left alone
// with it.
void AttentionPlan::AddBlockTasks(int kv_heads, int group) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const SequencePlan& sequence = sequences_[i];
    if (sequence.few) continue;
    block_rows_ = std::max<std::int64_t>(
        block_rows_, std::int64_t{std::min(sequence.tokens, block_tokens_)} * group);
    const std::int32_t blocks = (sequence.tokens + block_tokens_ - 1) / block_tokens_;
    for (std::int32_t block = blocks - 1; block >= 0; --block) {
      for (std::int32_t head = 0; head < kv_heads; ++head) {
        tasks_.push_back({AttentionTask::Kind::kBlock, static_cast<std::int32_t>(i), head, block});
      }
    }
  }
}

// Neighbouring splits are one task: what lies ahead is then fetched for the thread that will use
// it, and the first of a KV head's tasks leaves one partial result in all. Up to eight rows a split
// costs its reading, beyond that its rows.
void AttentionPlan::AddSplitTasks(const LayerKv& layer, int group, int threads) {
  const int kv_heads = layer.shape.kv_heads;
  const std::int64_t tasks = threads * kTasksPerThread;
  const auto weight = [&](const Stretch& stretch) {
    return std::max<std::int64_t>(std::int64_t{stretch.tokens} * group, 8);
  };
  std::int64_t all = 0;
  for (const Stretch& stretch : stretches()) all += stretch.splits * weight(stretch);
  // There can be more of them for a shorter history: room for the most.
  tasks_.reserve(tasks_.size() +
                 (2 * sequences_.size() + stretches().size()) * static_cast<std::size_t>(kv_heads) +
                 static_cast<std::size_t>(2 * tasks));
  for (std::size_t i = 0; i < stretches().size(); ++i) {
    Stretch& stretch = stretches_.all()[i];
    const std::int64_t rows = std::int64_t{stretch.tokens} * group;
    const auto at_once = static_cast<std::int32_t>(
        std::max<std::int64_t>(all * kv_heads / tasks / weight(stretch), 1));
    split_rows_ = std::max(split_rows_, rows);
    if (stretch.before < 0) stretch.merged = std::min(at_once, stretch.splits);
    stretch.partials = partial_floats_;
    partial_floats_ += std::int64_t{stretch.partials_of_head()} * rows * kv_heads *
                       PartialStride(layer.shape.v_dim);
    for (std::int32_t head = 0; head < kv_heads; ++head) {
      for (std::int32_t split = 0; split < stretch.splits; split += at_once) {
        tasks_.push_back({AttentionTask::Kind::kSplits, static_cast<std::int32_t>(i), head, split,
                          std::min(at_once, stretch.splits - split)});
      }
    }
  }
}

// One for each KV head of a sequence of few rows; where nothing is seen, a task for the zeros.
void AttentionPlan::AddMerges(int kv_heads) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    SequencePlan& sequence = sequences_[i];
    if (!sequence.few) continue;
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
  block_tokens_ = std::max(1, kBlockRows / group);
  block_rows_ = 0;
  split_rows_ = 0;
  partial_floats_ = 0;
  ListSequences(visibility);
  OrderSequences(layer, group, visibility);
  AddTokens(visibility);
  stretches_.Build({layer, group, threads, visibility}, sequences_);
  AddBlockTasks(layer.shape.kv_heads, group);
  AddSplitTasks(layer, group, threads);
  AddMerges(layer.shape.kv_heads);
}

std::span<const QueryToken> AttentionPlan::BlockOf(const SequencePlan& sequence, int block) const {
  const int first = block * block_tokens_;
  const int count = std::min(block_tokens_, sequence.tokens - first);
  return TokensOf(sequence).subspan(static_cast<std::size_t>(first),
                                    static_cast<std::size_t>(count));
}

}  // namespace kvcache::cpu
