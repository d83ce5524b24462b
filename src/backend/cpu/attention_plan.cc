#include "backend/cpu/attention_plan.h"

#include <algorithm>

namespace kvcache::cpu {
namespace {

// Up to so many rows of one KV head the keys and values are read as they lie; beyond, widening
// them first pays.
constexpr int kFewRows = 32;
// Rows of a block: enough to pay for the widening, few enough that queries and sums stay in
// the second-level cache.
constexpr int kBlockRows = 256;

PositionRange SeenBy(const Visibility& visibility, std::size_t token) {
  const std::int64_t position = visibility.positions[token];
  const bool all = !visibility.bidirectional.empty() && visibility.bidirectional[token] != 0;
  std::int64_t begin = 0;
  if (visibility.window > 0) begin = std::max(begin, position - visibility.window + 1);
  if (visibility.chunk > 0) begin = std::max(begin, position - position % visibility.chunk);
  const std::int64_t end = all ? kEndOfSequence : position + 1;
  return {static_cast<Position>(begin), static_cast<Position>(end)};
}

}  // namespace

// Counts, then places: tokens of one sequence end up together, in the batch's order.
void AttentionPlan::GroupTokens(const Visibility& visibility) {
  sequences_.assign(visibility.histories.size(), SequencePlan{});
  for (const std::int32_t history : visibility.histories_index) {
    ++sequences_[static_cast<std::size_t>(history)].tokens;
  }
  std::int32_t first = 0;
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    SequencePlan& sequence = sequences_[i];
    sequence.history = static_cast<std::int32_t>(i);
    sequence.first_token = first;
    sequence.seen = {kEndOfSequence, 0};
    first += sequence.tokens;
    sequence.tokens = 0;
  }
  AddTokens(visibility);
}

void AttentionPlan::AddTokens(const Visibility& visibility) {
  tokens_.resize(visibility.positions.size());
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    SequencePlan& sequence = sequences_[static_cast<std::size_t>(visibility.histories_index[i])];
    const PositionRange seen = SeenBy(visibility, i);
    tokens_[static_cast<std::size_t>(sequence.first_token + sequence.tokens)] = {
        static_cast<std::int32_t>(i), visibility.positions[i], seen};
    ++sequence.tokens;
    sequence.seen.begin = std::min(sequence.seen.begin, seen.begin);
    sequence.seen.end = std::max(sequence.seen.end, seen.end);
  }
}

void AttentionPlan::PlanSplits(std::span<const HistoryRun> runs, SequencePlan& sequence) {
  sequence.first_split = static_cast<std::int32_t>(splits_.size());
  std::int32_t last = -1;
  for (const HistoryRun& run : runs) {
    const std::int64_t run_end = std::int64_t{run.position} + run.length;
    const std::int64_t begin = std::max(run.position, sequence.seen.begin);
    const std::int64_t end = std::min<std::int64_t>(run_end, sequence.seen.end);
    if (begin >= end) continue;
    const auto first = std::max(last + 1, static_cast<std::int32_t>(begin / kSplitPositions));
    last = static_cast<std::int32_t>((end - 1) / kSplitPositions);
    for (std::int32_t split = first; split <= last; ++split) splits_.push_back(split);
  }
  sequence.splits = static_cast<std::int32_t>(splits_.size()) - sequence.first_split;
}

void AttentionPlan::PlanSequence(const LayerKv& layer, int group, const Visibility& visibility,
                                 SequencePlan& sequence) {
  const std::int64_t rows = std::int64_t{sequence.tokens} * group;
  const int kv_heads = layer.shape.kv_heads;
  sequence.few = layer.layout == KvLayout::kTiled && (rows <= kFewRows || sequence.tokens == 1);
  if (!sequence.few) {
    block_rows_ = std::max<std::int64_t>(
        block_rows_, std::int64_t{std::min(sequence.tokens, block_tokens_)} * group);
    return;
  }
  split_rows_ = std::max(split_rows_, rows);
  PlanSplits(visibility.histories[static_cast<std::size_t>(sequence.history)], sequence);
  sequence.first_merge = static_cast<std::int32_t>(waiting_.size());
  waiting_.insert(waiting_.end(), static_cast<std::size_t>(kv_heads), sequence.splits);
}

// The last block of a sequence sees the most: it comes first, so that no thread is left alone
// with it.
void AttentionPlan::AddBlockTasks(int kv_heads) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const SequencePlan& sequence = sequences_[i];
    if (sequence.few || sequence.tokens == 0) continue;
    const std::int32_t blocks = (sequence.tokens + block_tokens_ - 1) / block_tokens_;
    for (std::int32_t block = blocks - 1; block >= 0; --block) {
      for (std::int32_t head = 0; head < kv_heads; ++head) {
        tasks_.push_back({static_cast<std::int32_t>(i), head, block, 0});
      }
    }
  }
}

// Neighbouring splits are one task: what lies ahead is then fetched for the thread that will use
// it, and the first of a KV head's tasks leaves one partial result in all.
void AttentionPlan::AddSplitTasks(const LayerKv& layer, int group, int threads) {
  const int kv_heads = layer.shape.kv_heads;
  constexpr std::int64_t kTasksPerThread = 4;
  const std::int64_t all = static_cast<std::int64_t>(splits_.size()) * kv_heads;
  const auto at_once =
      static_cast<std::int32_t>(std::max<std::int64_t>(all / (threads * kTasksPerThread), 1));
  // There can be more of them for a shorter history: room for the most.
  tasks_.reserve(tasks_.size() + sequences_.size() * static_cast<std::size_t>(kv_heads) +
                 static_cast<std::size_t>(2 * threads * kTasksPerThread));
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    SequencePlan& sequence = sequences_[i];
    if (!sequence.few || sequence.tokens == 0) continue;
    sequence.merged = std::min(at_once, sequence.splits);
    sequence.partials = partial_floats_;
    partial_floats_ += std::int64_t{sequence.partials_of_head()} * sequence.tokens * group *
                       kv_heads * PartialStride(layer.shape.v_dim);
    for (std::int32_t head = 0; head < kv_heads; ++head) {
      // Without splits one task remains, to write the zeros.
      for (std::int32_t split = 0; split < std::max(sequence.splits, 1); split += at_once) {
        tasks_.push_back({static_cast<std::int32_t>(i), head, split,
                          std::min(at_once, sequence.splits - split)});
      }
    }
  }
}

void AttentionPlan::Build(const LayerKv& layer, int group, int threads,
                          const Visibility& visibility) {
  splits_.clear();
  tasks_.clear();
  waiting_.clear();
  block_tokens_ = std::max(1, kBlockRows / group);
  block_rows_ = 0;
  split_rows_ = 0;
  partial_floats_ = 0;
  GroupTokens(visibility);
  for (SequencePlan& sequence : sequences_) {
    if (sequence.tokens > 0) PlanSequence(layer, group, visibility, sequence);
  }
  AddBlockTasks(layer.shape.kv_heads);
  AddSplitTasks(layer, group, threads);
}

std::span<const QueryToken> AttentionPlan::BlockOf(const SequencePlan& sequence, int block) const {
  const int first = block * block_tokens_;
  const int count = std::min(block_tokens_, sequence.tokens - first);
  return tokens().subspan(static_cast<std::size_t>(sequence.first_token + first),
                          static_cast<std::size_t>(count));
}

}  // namespace kvcache::cpu
