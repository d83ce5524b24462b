#include "cache/causal/window_eviction.h"

#include <algorithm>

#include "base/strings.h"
#include "cache/cache_checks.h"

namespace kvcache {

namespace {

Status CheckNotNegative(const char* name, int value) {
  if (value >= 0) return Status::Ok();
  return Invalid(StrCat(name, " is ", value, "; must be at least 0"));
}

Status CheckOptions(const CausalOptions& causal) {
  KVCACHE_RETURN_IF_ERROR(CheckNotNegative("window", causal.window));
  KVCACHE_RETURN_IF_ERROR(CheckNotNegative("retained_tokens", causal.retained_tokens));
  KVCACHE_RETURN_IF_ERROR(CheckNotNegative("chunk", causal.chunk));
  if (causal.retained_tokens == 0 || causal.retained_tokens >= causal.window) {
    if (causal.window > 0 || causal.retained_tokens == 0) return Status::Ok();
    return Invalid(StrCat("retained_tokens is ", causal.retained_tokens,
                          " without a window; must be 0, or set a window"));
  }
  return Invalid(StrCat("retained_tokens is ", causal.retained_tokens,
                        "; must be at least the window, ", causal.window));
}

}  // namespace

Result<std::int32_t> WindowEviction::RetainedTokens(const CausalOptions& causal,
                                                    const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(CheckOptions(causal));
  if (causal.window == 0) return 0;
  std::int64_t retained = causal.retained_tokens > 0 ? causal.retained_tokens : causal.window;
  // A sequence that waits for others keeps retained - 1 tokens, its stop token among them. Going
  // back over the stop token must leave the window whole.
  if (options.max_sequences > 1) retained = std::max<std::int64_t>(retained, causal.window + 1LL);
  return retained >= options.capacity ? 0 : static_cast<std::int32_t>(retained);
}

void WindowEviction::Reset(std::int32_t retained_tokens, int sequences, int max_batch) {
  retained_tokens_ = retained_tokens;
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
                                               std::span<const ForwardPass::Token> tokens,
                                               const OpenTransactions& transactions) {
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
    if (!transactions.has(id)) PlanOne(cells, id, FirstKept(position));
  }
  for (const SequenceId id : grown_) {
    if (planned_for_[Index(id)] != 0 || transactions.has(id)) continue;
    PlanOne(cells, id, FirstKept(cells.history(id).length()));
  }
  for (const SequenceId id : in_batch_) planned_for_[Index(id)] = 0;
  return planned_;
}

Position WindowEviction::PlannedFor(SequenceId id) const {
  for (const Eviction& eviction : planned_) {
    if (eviction.sequence == id) return eviction.begin;
  }
  return 0;
}

void WindowEviction::Evict(CellTable& cells) {
  if (keeps_everything()) return;
  for (const auto& [id, begin] : planned_) cells.DropBefore(id, begin);
  for (const SequenceId id : grown_) has_grown_[Index(id)] = 0;
  grown_.clear();
  for (const SequenceId id : in_batch_) MarkGrown(id);
}

void WindowEviction::EvictOne(CellTable& cells, SequenceId id) const {
  const Position length = cells.history(id).length();
  // The newest token stays, because the length is known from it.
  const std::int64_t begin = std::min<std::int64_t>(FirstKept(length), length - 1);
  if (!keeps_everything() && begin > 0) cells.DropBefore(id, static_cast<Position>(begin));
}

void WindowEviction::MarkGrown(SequenceId id) {
  if (keeps_everything() || has_grown_[Index(id)] != 0) return;
  has_grown_[Index(id)] = 1;
  grown_.push_back(id);
}

}  // namespace kvcache
