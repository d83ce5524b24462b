#include "backend/cpu/attention_plan.h"

#include <algorithm>
#include <limits>

#include "backend/cpu/history_sharing.h"

namespace kvcache::cpu {
namespace {

// Up to so many rows of one KV head the keys and values are read as they lie; beyond, widening
// them first pays.
constexpr int kFewRows = 32;
// Rows of a block: enough to pay for the widening, few enough that queries and sums stay in
// the second-level cache.
constexpr int kBlockRows = 256;
// Values of the queries that share a reading of keys, 256 KiB: they, too, are read again in each
// split.
constexpr std::int64_t kSharedQueries = 1 << 16;

PositionRange SeenBy(const Visibility& visibility, std::size_t token) {
  const std::int64_t position = visibility.positions[token];
  const bool all = !visibility.bidirectional.empty() && visibility.bidirectional[token] != 0;
  std::int64_t begin = 0;
  if (visibility.window > 0) begin = std::max(begin, position - visibility.window + 1);
  if (visibility.chunk > 0) begin = std::max(begin, position - position % visibility.chunk);
  const std::int64_t end = all ? kEndOfSequence : position + 1;
  return {static_cast<Position>(begin), static_cast<Position>(end)};
}

PositionRange Union(PositionRange a, PositionRange b) {
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

}  // namespace

// The histories that have tokens.
void AttentionPlan::ListSequences(const Visibility& visibility) {
  sequences_.clear();
  sequence_of_.assign(visibility.histories.size(), -1);
  for (const std::int32_t history : visibility.histories_index) {
    std::int32_t& sequence = sequence_of_[static_cast<std::size_t>(history)];
    if (sequence < 0) {
      sequence = static_cast<std::int32_t>(sequences_.size());
      sequences_.push_back({.history = history});
    }
    ++sequences_[static_cast<std::size_t>(sequence)].tokens;
  }
}

// Sequences that share a beginning become neighbours. Others nearly always are in order.
void AttentionPlan::OrderBySharing(const Visibility& visibility) {
  const auto runs = [&](const SequencePlan& sequence) {
    return visibility.histories[static_cast<std::size_t>(sequence.history)];
  };
  const auto before = [&](const SequencePlan& a, const SequencePlan& b) {
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
    const auto history = static_cast<std::size_t>(visibility.histories_index[i]);
    SequencePlan& sequence = sequences_[static_cast<std::size_t>(sequence_of_[history])];
    const PositionRange seen = SeenBy(visibility, i);
    tokens_[static_cast<std::size_t>(sequence.first_token + sequence.tokens)] = {
        static_cast<std::int32_t>(i), visibility.positions[i], seen};
    ++sequence.tokens;
    sequence.seen = Union(sequence.seen, seen);
  }
}

// What sequences share is read as it lies, for as many rows as they have together.
void AttentionPlan::ChooseFew(const LayerKv& layer, int group, const Visibility& visibility) {
  if (layer.layout != KvLayout::kTiled) return;
  most_shared_tokens_ = static_cast<std::int32_t>(
      std::max<std::int64_t>(kSharedQueries / layer.shape.k_dim / group, 1));
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    SequencePlan& sequence = sequences_[i];
    sequence.few = sequence.tokens == 1 || sequence.tokens * group <= kFewRows;
    if (i == 0) continue;
    SequencePlan& before = sequences_[i - 1];
    if (std::max(before.tokens, sequence.tokens) > most_shared_tokens_) continue;
    sequence.shared =
        SharedUntil(visibility.histories[static_cast<std::size_t>(before.history)],
                    visibility.histories[static_cast<std::size_t>(sequence.history)]) /
        kSplitPositions;
    if (sequence.shared > 0) before.few = sequence.few = true;
  }
}

void AttentionPlan::AddSplits(std::span<const HistoryRun> runs, Stretch& stretch) {
  stretch.first_split = static_cast<std::int32_t>(splits_.size());
  std::int32_t last = -1;
  for (const HistoryRun& run : runs) {
    const std::int64_t run_end = std::int64_t{run.position} + run.length;
    const std::int64_t begin = std::max(run.position, stretch.seen.begin);
    const std::int64_t end = std::min<std::int64_t>(run_end, stretch.seen.end);
    if (begin >= end) continue;
    const auto first = std::max(last + 1, static_cast<std::int32_t>(begin / kSplitPositions));
    last = static_cast<std::int32_t>((end - 1) / kSplitPositions);
    for (std::int32_t split = first; split <= last; ++split) splits_.push_back(split);
  }
  stretch.splits = static_cast<std::int32_t>(splits_.size()) - stretch.first_split;
}

// What any of the branch's tokens sees before `end` and behind the splits that it has.
void AttentionPlan::AddStretch(const Visibility& visibility, Position end, Branch& branch) {
  const auto members = std::span(sequences_)
                           .subspan(static_cast<std::size_t>(branch.first),
                                    static_cast<std::size_t>(branch.end - branch.first));
  Stretch stretch{.before = branch.last_stretch,
                  .first_sequence = branch.first,
                  .sequences = branch.end - branch.first,
                  .first_token = members.front().first_token,
                  .seen = {kEndOfSequence, 0}};
  for (const SequencePlan& sequence : members) {
    stretch.tokens += sequence.tokens;
    stretch.seen = Union(stretch.seen, sequence.seen);
  }
  stretch.seen = {std::max(stretch.seen.begin, SplitBase(branch.splits)),
                  std::min(stretch.seen.end, end)};
  AddSplits(visibility.histories[static_cast<std::size_t>(members.front().history)], stretch);
  if (stretch.splits == 0) return;
  branch.last_stretch = static_cast<std::int32_t>(stretches_.size());
  for (SequencePlan& sequence : members) {
    sequence.last_stretch = branch.last_stretch;
    sequence.splits += stretch.splits;
  }
  stretches_.push_back(stretch);
}

// What all of the branch share is a stretch; then each part that shares more is a branch.
void AttentionPlan::AddBranch(const Visibility& visibility, Branch branch) {
  if (branch.end - branch.first == 1) return AddStretch(visibility, kEndOfSequence, branch);
  std::int32_t shared = std::numeric_limits<std::int32_t>::max();
  std::int32_t tokens = sequences_[static_cast<std::size_t>(branch.first)].tokens;
  for (std::int32_t i = branch.first + 1; i < branch.end; ++i) {
    const SequencePlan& sequence = sequences_[static_cast<std::size_t>(i)];
    shared = std::min(shared, sequence.shared);
    tokens += sequence.tokens;
  }
  const bool too_many = shared > branch.splits && tokens > most_shared_tokens_;
  if (shared > branch.splits && !too_many) {
    AddStretch(visibility, SplitBase(shared), branch);
    branch.splits = shared;
  }
  Branch part = branch;
  std::int32_t part_tokens = 0;
  for (std::int32_t i = branch.first; i < branch.end; ++i) {
    const SequencePlan& sequence = sequences_[static_cast<std::size_t>(i)];
    const bool cut =
        too_many ? part_tokens + sequence.tokens > most_shared_tokens_ : sequence.shared == shared;
    if (i > branch.first && cut) {
      part.end = i;
      AddBranch(visibility, part);
      part.first = i;
      part_tokens = 0;
    }
    part_tokens += sequence.tokens;
  }
  part.end = branch.end;
  AddBranch(visibility, part);
}

void AttentionPlan::AddBranches(const Visibility& visibility) {
  const auto count = static_cast<std::int32_t>(sequences_.size());
  for (std::int32_t i = 0; i < count;) {
    Branch branch{.first = i, .end = i + 1};
    const auto& at = [&](std::int32_t index) -> const SequencePlan& {
      return sequences_[static_cast<std::size_t>(index)];
    };
    while (branch.end < count && at(branch.end).shared > 0) ++branch.end;
    if (at(i).few) AddBranch(visibility, branch);
    i = branch.end;
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
// it, and the first of a KV head's tasks leaves one partial result in all.
void AttentionPlan::AddSplitTasks(const LayerKv& layer, int group, int threads) {
  const int kv_heads = layer.shape.kv_heads;
  constexpr std::int64_t kTasksPerThread = 4;
  const std::int64_t all = static_cast<std::int64_t>(splits_.size()) * kv_heads;
  const auto at_once =
      static_cast<std::int32_t>(std::max<std::int64_t>(all / (threads * kTasksPerThread), 1));
  // There can be more of them for a shorter history: room for the most.
  tasks_.reserve(tasks_.size() + stretches_.size() * static_cast<std::size_t>(kv_heads) +
                 static_cast<std::size_t>(2 * threads * kTasksPerThread));
  for (std::size_t i = 0; i < stretches_.size(); ++i) {
    Stretch& stretch = stretches_[i];
    const std::int64_t rows = std::int64_t{stretch.tokens} * group;
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
  stretches_.clear();
  splits_.clear();
  tasks_.clear();
  waiting_.clear();
  block_tokens_ = std::max(1, kBlockRows / group);
  block_rows_ = 0;
  split_rows_ = 0;
  partial_floats_ = 0;
  ListSequences(visibility);
  OrderBySharing(visibility);
  AddTokens(visibility);
  ChooseFew(layer, group, visibility);
  AddBranches(visibility);
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
