#include "backend/cpu/attention/attention_plans.h"

#include <iterator>
#include <span>

namespace kvcache::cpu {
namespace {

// Returns whether the numbers are those from `known` on, and moves `known` behind them. Looks at all of them: loops
// without an end in the middle become vector code.
template <class T>
bool IsNext(std::span<const T> numbers, const T*& known) {
  T differ = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    differ = static_cast<T>(differ | (numbers[i] ^ known[i]));
  known += numbers.size();
  return differ == 0;
}

bool IsNext(const HistoryRun& run, const std::int32_t*& known) {
  const bool same = run.position == known[0] && run.cell == known[1] && run.length == known[2];
  known += 3;
  return same;
}

}  // namespace

bool PlanInputs::SameLayer(const LayerKv& layer, int group, int threads,
                           const Visibility& visibility) const {
  return group_ == group && threads_ == threads && window_ == visibility.window &&
         chunk_ == visibility.chunk && layer_.shape == layer.shape &&
         layer_.layout == layer.layout && layer_.k_type == layer.k_type &&
         layer_.v_type == layer.v_type && layer_.cells == layer.cells;
}

bool PlanInputs::SameTokens(const Visibility& visibility) const {
  if (visibility.positions.size() != queries_ || visibility.history_of_query.size() != queries_ ||
      visibility.histories.size() != histories_ ||
      visibility.bidirectional.size() != bidirectional_.size()) {
    return false;
  }
  const std::int32_t* known = numbers_.data();
  const std::uint8_t* known_flags = bidirectional_.data();
  if (!IsNext(visibility.positions, known) || !IsNext(visibility.history_of_query, known) ||
      !IsNext(visibility.bidirectional, known_flags)) {
    return false;
  }
  for (const std::span<const HistoryRun> runs : visibility.histories) {
    if (std::ssize(runs) != *known++) return false;
    for (const HistoryRun& run : runs) {
      if (!IsNext(run, known)) return false;
    }
  }
  return true;
}

// Looks at everything before the first change.
bool PlanInputs::Grow(const Visibility& visibility) {
  if (visibility.positions.size() != queries_ || visibility.history_of_query.size() != queries_ ||
      visibility.histories.size() != histories_ || !visibility.bidirectional.empty()) {
    return false;
  }
  const std::int32_t* known = numbers_.data();
  for (const Position position : visibility.positions) {
    if (position != *known++ + 1 || position == kEndOfSequence) return false;
    if (position % kSplitPositions == 0) return false;
  }
  if (!IsNext(visibility.history_of_query, known)) return false;
  for (std::size_t i = 0; i < histories_; ++i) {
    const std::span<const HistoryRun> runs = visibility.histories[i];
    if (std::ssize(runs) != *known++) return false;
    for (const HistoryRun& run : runs.first(runs.size() - 1)) {
      if (!IsNext(run, known)) return false;
    }
    HistoryRun last = runs.back();
    if (last.length < 1 || std::int64_t{last.cell} + last.length > layer_.cells) return false;
    --last.length;
    if (!IsNext(last, known)) return false;
  }
  std::int32_t* number = numbers_.data();
  for (std::size_t i = 0; i < queries_; ++i) ++*number++;
  number += queries_;
  for (const std::span<const HistoryRun> runs : visibility.histories) {
    number += 1 + 3 * runs.size();
    ++number[-1];  // the length of the last run
  }
  return true;
}

void PlanInputs::Set(const LayerKv& layer, int group, int threads, const Visibility& visibility) {
  Clear();
  queries_ = visibility.positions.size();
  histories_ = visibility.histories.size();
  std::size_t numbers = 2 * queries_ + histories_;
  for (const std::span<const HistoryRun> runs : visibility.histories) numbers += 3 * runs.size();
  is_decode_ = queries_ == histories_ && visibility.window == 0 && visibility.chunk == 0 &&
               visibility.bidirectional.empty();
  for (std::size_t i = 0; i < histories_ && is_decode_; ++i) {
    const std::span<const HistoryRun> runs = visibility.histories[i];
    is_decode_ = visibility.history_of_query[i] == static_cast<std::int32_t>(i) && !runs.empty() &&
                 runs.back().position + runs.back().length == visibility.positions[i] + 1;
  }
  numbers_.clear();
  if (numbers > numbers_.capacity()) numbers_.reserve(2 * numbers);
  numbers_.insert(numbers_.end(), visibility.positions.begin(), visibility.positions.end());
  numbers_.insert(numbers_.end(), visibility.history_of_query.begin(),
                  visibility.history_of_query.end());
  for (const std::span<const HistoryRun> runs : visibility.histories) {
    numbers_.push_back(static_cast<std::int32_t>(runs.size()));
    for (const HistoryRun& run : runs) {
      numbers_.insert(numbers_.end(), {run.position, run.cell, run.length});
    }
  }
  bidirectional_.assign(visibility.bidirectional.begin(), visibility.bidirectional.end());
  layer_ = layer;
  threads_ = threads;
  window_ = visibility.window;
  chunk_ = visibility.chunk;
  group_ = group;
}

void AttentionPlans::Prefetch(const Visibility& visibility) const {
  known_[last_].inputs.Prefetch();
  PrefetchRange(visibility.positions.data(), visibility.positions.size_bytes());
  PrefetchRange(visibility.history_of_query.data(), visibility.history_of_query.size_bytes());
  PrefetchRange(visibility.histories.data(), visibility.histories.size_bytes());
  if (visibility.histories.empty()) return;
  // The histories of sequences that decode are mostly one run each, side by side.
  PrefetchRange(visibility.histories.front().data(),
                visibility.histories.size() * sizeof(HistoryRun));
}

Result<AttentionPlan*> AttentionPlans::For(const LayerKv& layer, int group, int threads,
                                           std::int64_t batch, const Visibility& visibility) {
  const auto same_layer = [&](const Known& known) {
    return known.inputs.SameLayer(layer, group, threads, visibility);
  };
  if (!same_layer(known_[last_])) last_ = 1 - last_;
  Known& known = known_[last_];
  if (same_layer(known) && std::ssize(visibility.positions) == batch) {
    if (known.inputs.SameTokens(visibility)) return &known.plan;
    if (known.inputs.is_decode() && known.plan.grows() && known.inputs.Grow(visibility)) {
      known.plan.Grow();
      return &known.plan;
    }
  }
  KVCACHE_RETURN_IF_ERROR(CheckVisibility(layer, batch, visibility));
  known.inputs.Clear();
  known.plan.Build(layer, group, threads, visibility);
  known.inputs.Set(layer, group, threads, visibility);
  return &known.plan;
}

}  // namespace kvcache::cpu
