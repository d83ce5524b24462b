#include "engine/scheduler/job_prefixes.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/seconds_since.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/hidden_states.h"
#include "engine/prefixes/token_keys.h"
#include "engine/scheduler/job_saves.h"

namespace kvcache {
namespace {

// Tokens that are worth waiting for another request's prefill. It is never slower to wait: who does not
// wait computes the same tokens in the same passes.
constexpr Position kWorthWaiting = 16;

Position SharedLength(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<Position>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

constexpr char kNoMemoryForKeys[] = "no memory for the keys of a prompt";

}  // namespace

JobPrefixes::JobPrefixes(Engine& engine, const SchedulerOptions& options)
    : engine_(engine),
      options_(options),
      divisible_(IsDivisible(engine.info().memory)),
      states_(engine.cache(), engine.states()) {}

Status JobPrefixes::Open() {
  const EngineOptions& engine = engine_.options();
  PrefixOptions prefix{
      .divisible = divisible_,
      .recompute_bound = options_.recompute_bound,
      .state_tokens = StateTokens(engine_.info().memory, engine.k_type, engine.v_type),
      .finds_continuations = options_.look_up_drafts};
  KVCACHE_ASSIGN_OR_RETURN(prefixes_, PrefixCache::Make(states_, prefix));
  return Status::Ok();
}

double JobPrefixes::Now() const {
  return SecondsSince(start_);
}

Result<PrefixPlan> JobPrefixes::Begin(Job& job) {
  return Guarded(kNoMemoryForKeys, [&] {
    auto plan = prefixes_->Begin({.keys = KeysOf(job.tokens),
                                  .salt = job.salt,
                                  .restore_points = job.request.restore_points,
                                  .pictures = job.picture_ranges()},
                                 Now());
    if (!plan.ok()) return plan;
    job.prefix = plan->request;
    job.has_prefix = true;
    job.prefix_tokens = static_cast<Position>(job.tokens.size());
    return plan;
  });
}

void JobPrefixes::Restore(Job& job, PrefixPlan& plan) {
  if (plan.resumed == 0) return;
  if (RestoreState(job, plan).ok()) {
    job.length = plan.resumed;
  } else {
    (void)engine_.cache().Remove(job.sequence, 0, kEndOfSequence).ok();  // never fails
    plan.captures = prefixes_->NotRestored(plan.request);
  }
}

Status JobPrefixes::RestoreState(const Job& job, PrefixPlan& plan) {
  while (true) {
    Status restored = states_.Restore(plan.state, job.sequence, plan.resumed);
    if (restored.code() != StatusCode::kCacheFull || prefixes_->Evict(plan.resumed) < 0) {
      return restored;
    }
    const auto match = Probe(job.tokens, job.salt, {}, job.picture_ranges());
    if (!match.ok() || match->resumed == 0) return restored;
    plan.state = match->state;
    plan.resumed = match->resumed;
  }
}

Result<PrefixMatch> JobPrefixes::Probe(std::span<const std::int32_t> tokens, std::uint64_t salt,
                                       std::span<const JobPtr> live,
                                       std::span<const PrefixRange> pictures) const {
  return Guarded(kNoMemoryForKeys, [&] {
    auto match = prefixes_->Probe({.keys = KeysOf(tokens), .salt = salt, .pictures = pictures});
    if (!match.ok()) return match;
    const Position shared = FindSharer(tokens, salt, live).tokens;
    Position more = std::max<Position>(0, shared - match->resumed);
    match->resumed += more;
    match->matched = std::max(match->matched, match->resumed);
    for (PrefixMiss& miss : match->missed) {
      const Position taken = std::min(more, miss.tokens);
      miss.tokens -= taken;
      more -= taken;
    }
    std::erase_if(match->missed, [](const PrefixMiss& miss) { return miss.tokens == 0; });
    return match;
  });
}

bool JobPrefixes::AppendKeys(Job& job) {
  if (!job.has_prefix) return false;
  const auto known = static_cast<std::size_t>(job.prefix_tokens);
  if (known == job.tokens.size()) return true;
  const Status appended = Guarded(kNoMemoryForKeys, [&] {
    return prefixes_->Append(job.prefix, KeysOf(std::span(job.tokens).subspan(known)));
  });
  if (!appended.ok()) return false;
  job.prefix_tokens = static_cast<Position>(job.tokens.size());
  return true;
}

void JobPrefixes::TakeCaptures(Job& job) {
  if (!job.has_prefix) return;
  job.captures.Take(
      engine_.cache(), job.sequence, job.length, states_, *prefixes_, job.prefix,
      [&](const Snapshot& state, Position length) { SaveState(engine_, job, state, length); });
  SavePieces(engine_, job, PrefixStore::Extent::kWholeChunks);
}

void JobPrefixes::Keep(Job& job) {
  const bool is_cut = job.pictures != nullptr && job.pictures->Before(job.length) < job.length;
  if (is_cut && !divisible_) return;  // nothing continues there
  if (job.length < 1 || !AppendKeys(job)) return;
  auto state = states_.Take(job.sequence, job.length);
  if (!state.ok()) return;
  SaveState(engine_, job, *states_.Find(*state), job.length);
  SavePieces(engine_, job, PrefixStore::Extent::kAll);
  (void)prefixes_->Extend(job.prefix, job.length, *state).ok();
}

void JobPrefixes::Close(Job& job) {
  (void)AppendKeys(job);
  if (std::exchange(job.has_prefix, false)) prefixes_->Close(job.prefix, Now());
}

void JobPrefixes::Leave(Job& job) {
  if (job.can_keep) {
    TakeCaptures(job);
    Keep(job);
  }
  Close(job);
  Empty(job);
}

void JobPrefixes::Empty(Job& job) {
  job.captures.Cancel(engine_.cache(), job.sequence);
  (void)engine_.cache().Remove(job.sequence, 0, kEndOfSequence).ok();  // never fails
  job.length = 0;
}

bool JobPrefixes::ShouldWait(const Job& job, std::span<const JobPtr> live) const {
  Position max = 0;
  // In caches whose sequences can be cut: the request that has read most of what both share.
  const Job* reader = nullptr;
  for (const JobPtr& other : live) {
    if (!other->in_prompt || !other->has_prefix || other->salt != job.salt) {
      continue;
    }
    const Position shared = SharedLength(other->tokens, job.tokens);
    if (divisible_) {
      const bool further = reader != nullptr && shared == max && other->length > reader->length;
      if (shared > max || further) reader = other.get();
      max = std::max(max, shared);
      continue;
    }
    for (const Position at : other->captures.lengths()) {
      if (at <= shared) max = std::max(max, at);
    }
  }
  if (max < kWorthWaiting) return false;
  // The rest of a long prompt is not worth waiting for.
  if (reader != nullptr && reader->length >= max) return false;
  const auto match = Probe(job.tokens, job.salt, {}, job.picture_ranges());
  return match.ok() && max > match->resumed + kWorthWaiting;
}

JobPrefixes::Sharer JobPrefixes::FindSharer(std::span<const std::int32_t> tokens,
                                            std::uint64_t salt,
                                            std::span<const JobPtr> live) const {
  Sharer max;
  const auto reusable = tokens.first(tokens.size() - 1);
  for (const JobPtr& job : live) {
    if (!job->has_prefix || !job->can_keep || job->salt != salt) continue;
    const auto evaluated = std::span(job->tokens).first(static_cast<std::size_t>(job->length));
    const Position shared = SharedLength(evaluated, reusable);
    const bool restores = divisible_ || shared == job->length;
    if (restores && shared > max.tokens) max = {job.get(), shared};
  }
  return max;
}

// A state of a live sequence is taken when another request can use it, not with each token: taking one and looking it
// up cost more than the token.
void JobPrefixes::ShareLive(const Job& job, std::span<const JobPtr> live) {
  const Sharer sharer = FindSharer(job.tokens, job.salt, live);
  if (sharer.job == nullptr) return;
  const auto match = Probe(job.tokens, job.salt, {}, job.picture_ranges());
  if (!match.ok() || match->resumed >= sharer.tokens || !AppendKeys(*sharer.job)) return;
  auto state = states_.Take(sharer.job->sequence, sharer.job->length);
  if (state.ok()) {
    (void)prefixes_->Extend(sharer.job->prefix, sharer.job->length, *state).ok();
  }
}

}  // namespace kvcache
