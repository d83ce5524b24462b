#include "engine/scheduler/memory_budget.h"

#include <algorithm>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/memory_plan.h"
#include "engine/pictures/picture_rows.h"
#include "engine/prefixes/hidden_states.h"
#include "engine/scheduler/pass/capture_limit.h"
#include "model/layer_memory.h"

namespace kvcache {
namespace {

// The bytes of a final state, which a prefix has besides its snapshot.
std::int64_t LastStateBytes(Engine& engine) {
  const HiddenStates* const states = engine.states();
  return states == nullptr ? 0 : states->hidden_size() * static_cast<std::int64_t>(sizeof(float));
}

double ShareOfFreeMemory(const Engine& engine, const SchedulerOptions& options) {
  const double share = engine.options().releases_memory ? MemoryPlan::kFreeShare : 0.0;
  return options.free_memory_share.value_or(share);
}

int CapturesOf(const PassRows& of) {
  const Position begin = of.job->length;
  const auto lengths = of.job->captures.lengths();
  return static_cast<int>(std::count_if(lengths.begin(), lengths.end(), [&](Position at) {
    return at > begin && at <= begin + of.tokens;
  }));
}

}  // namespace

std::int64_t Scheduler::MinBudget(Engine& engine) {
  const SequenceLength context[] = {{SequenceId{0}, engine.context()}};
  return engine.cache().memory()->ResidentBytes() + engine.WorkspaceBytes() +
         engine.cache().memory()->GrowthOf(context, kMaxCapturesPerPass, 0) +
         (kMaxCapturesPerPass + 1) * LastStateBytes(engine);
}

Status Scheduler::CheckBudget(Engine& engine, std::int64_t bytes) {
  if (bytes < 0) {
    return InvalidArgument(StrCat("the budget is ", bytes, " bytes; must be at least 0"));
  }
  const std::int64_t fixed = engine.cache().memory()->ResidentBytes() + engine.WorkspaceBytes();
  if (engine.options().releases_memory && bytes > 0 && bytes <= fixed) {
    return InvalidArgument(StrCat(
        "the budget is ", bytes, " bytes; the empty cache and the buffers of passes take ", fixed));
  }
  return Status::Ok();
}

MemoryBudget::MemoryBudget(Engine& engine, const SchedulerOptions& options,
                           const SnapshotStates& states, PassRunner& runner)
    : engine_(engine),
      states_(states),
      runner_(runner),
      bytes_per_token_(kvcache::BytesPerToken(engine.info().memory, engine.options().k_type,
                                              engine.options().v_type)),
      governor_(
          options.budget_bytes, ShareOfFreeMemory(engine, options),
          options.available_memory ? options.available_memory
                                   : [] { return kvcache::AvailableMemory(); }),
      spills_(options.one_at_a_time) {
  growing_.reserve(static_cast<std::size_t>(std::max(engine.options().max_sequences, 1)));
  if (engine.options().releases_memory) governor_.SetMin(Scheduler::MinBudget(engine));
}

std::int64_t MemoryBudget::HeldBytes() const {
  const Cache& cache = engine_.cache();
  std::int64_t states = states_.last_state_bytes();
  if (engine_.pictures() != nullptr) states += engine_.pictures()->HeldBytes();
  if (!engine_.options().releases_memory) return cache.memory()->UsedBytes() + states;
  return cache.memory()->ResidentBytes() + engine_.WorkspaceBytes() + runner_.ExtraBytes() + states;
}

std::int64_t MemoryBudget::Growth(std::int64_t cells, std::span<const PassRows> rows) {
  if (!engine_.options().releases_memory) return cells * bytes_per_token_;
  growing_.clear();
  int captures = 0;
  int rounds = 0;
  std::size_t logits = 0;
  for (const PassRows& of : rows) {
    if (of.tokens == 0) continue;
    rounds += of.drafted > 0 ? 1 : 0;
    logits += 1 + static_cast<std::size_t>(of.drafted);
    growing_.push_back({of.job->sequence, of.tokens});
    captures += CapturesOf(of);
  }
  std::sort(growing_.begin(), growing_.end(),
            [](const auto& a, const auto& b) { return Index(a.sequence) < Index(b.sequence); });
  const std::int64_t growth = engine_.cache().memory()->GrowthOf(growing_, captures, rounds) +
                              runner_.ExtraBytes(logits) - runner_.ExtraBytes();
  if (growth == 0) return 0;
  return growth + (captures + std::ssize(growing_)) * LastStateBytes(engine_);
}

bool MemoryBudget::HasRoom(std::int64_t cells, std::span<const PassRows> rows) {
  if (!spills_ && engine_.cache().memory()->FreeCells() < cells) return false;
  if (!governor_.limits()) return true;
  const std::int64_t held = HeldBytes();
  const std::int64_t budget = governor_.Budget(held, MemoryGovernor::Clock::now());
  if (budget == MemoryGovernor::kNoLimit) return true;
  // A pass that needs no more memory continues above the budget, too.
  const std::int64_t growth = Growth(cells, rows);
  return growth == 0 || held + growth <= budget;
}

// An error leaves memory with the cache, which still counts it and uses it for other tokens.
bool MemoryBudget::Release() {
  if (!engine_.options().releases_memory) return true;
  runner_.Release();
  if (engine_.pictures() != nullptr) engine_.pictures()->Drop();
  return engine_.cache().memory()->ReleaseFreeMemory().ok();
}

bool MemoryBudget::IsOver() {
  if (!engine_.options().releases_memory || !governor_.limits()) return false;
  const std::int64_t held = HeldBytes();
  return held > governor_.Budget(held, MemoryGovernor::Clock::now());
}

std::int64_t MemoryBudget::Bytes(std::int64_t held) {
  const std::int64_t budget = governor_.Budget(held, MemoryGovernor::Clock::now());
  return budget == MemoryGovernor::kNoLimit ? 0 : budget;
}

}  // namespace kvcache
