#include "cache/window_eviction.h"

#include <algorithm>
#include <string>

#include "cache/cache_checks.h"

namespace kvcache {

Result<std::int32_t> WindowEviction::MemoryOf(const CausalOptions& causal,
                                              const CacheOptions& options) {
  if (causal.window < 0 || causal.retained_tokens < 0 || causal.chunk < 0) {
    return Invalid("a window of " + std::to_string(causal.window) + ", a memory of " +
                   std::to_string(causal.retained_tokens) + " or a chunk of " +
                   std::to_string(causal.chunk) + " tokens is negative");
  }
  if (causal.window == 0 && causal.retained_tokens > 0) {
    return Invalid("a memory of " + std::to_string(causal.retained_tokens) +
                   " tokens without a window");
  }
  if (causal.retained_tokens > 0 && causal.retained_tokens < causal.window) {
    return Invalid("a memory of " + std::to_string(causal.retained_tokens) +
                   " tokens is below the window of " + std::to_string(causal.window));
  }
  if (causal.window == 0) return 0;
  std::int64_t memory = causal.retained_tokens > 0 ? causal.retained_tokens : causal.window;
  // A token that ends a text takes a cell; going back over it must not break the window.
  if (options.max_sequences > 1) memory = std::max<std::int64_t>(memory, causal.window + 1LL);
  return memory >= options.capacity ? 0 : static_cast<std::int32_t>(memory);
}

void WindowEviction::Reset(std::int32_t memory, int sequences, int max_batch) {
  memory_ = memory;
  planned_.reserve(sequences);
  in_batch_.reserve(std::min(sequences, max_batch));
  planned_for_.assign(sequences, 0);
  grown_.reserve(sequences);
  has_grown_.assign(sequences, 0);
}

void WindowEviction::PlanOne(const CellTable& cells, SequenceId id, std::int64_t begin) {
  const std::span<const HistoryRun> runs = cells.history(id).runs();
  if (runs.empty() || runs.front().position >= begin) return;
  planned_.push_back({id, static_cast<Position>(begin)});
}

std::span<const Eviction> WindowEviction::Plan(const CellTable& cells,
                                               std::span<const ForwardPass::Token> tokens) {
  planned_.clear();
  in_batch_.clear();
  plan_fits_ = !keeps_everything();
  if (keeps_everything()) return planned_;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto& [id, position, index] = tokens[i];
    if (i > 0 && tokens[i - 1].sequence == id) continue;
    in_batch_.push_back(id);
    planned_for_[Index(id)] = 1;
    plan_fits_ = plan_fits_ && position >= cells.history(id).length();
    PlanOne(cells, id, std::int64_t{position} - memory_);
  }
  for (const SequenceId id : grown_) {
    if (planned_for_[Index(id)] != 0) continue;
    PlanOne(cells, id, std::int64_t{cells.history(id).length()} - memory_);
  }
  for (const SequenceId id : in_batch_) planned_for_[Index(id)] = 0;
  return planned_;
}

void WindowEviction::Evict(CellTable& cells) {
  if (keeps_everything()) return;
  for (const auto& [id, begin] : planned_) cells.DropBefore(id, begin);
  for (const SequenceId id : grown_) has_grown_[Index(id)] = 0;
  grown_.clear();
  for (const SequenceId id : in_batch_) MarkGrown(id);
}

void WindowEviction::MarkGrown(SequenceId id) {
  if (keeps_everything() || has_grown_[Index(id)] != 0) return;
  has_grown_[Index(id)] = 1;
  grown_.push_back(id);
}

}  // namespace kvcache
