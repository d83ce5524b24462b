#include "engine/prefixes/session_prefixes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/persist/prefix_store.h"
#include "engine/prefixes/sequence_states.h"
#include "engine/prefixes/token_keys.h"

namespace kvcache {

SessionPrefixes::SessionPrefixes(Engine& engine, Session& session, std::int64_t most_tokens)
    : engine_(engine),
      session_(session),
      most_tokens_(most_tokens),
      states_(engine.cache(), engine.states()) {}

SessionPrefixes::~SessionPrefixes() {
  engine_.cache().snapshots()->CancelCaptures(session_.sequence());
}

Result<std::unique_ptr<SessionPrefixes>> SessionPrefixes::Make(Engine& engine, Session& session,
                                                               std::int64_t most_tokens) {
  std::unique_ptr<SessionPrefixes> made(new SessionPrefixes(engine, session, most_tokens));
  const std::span<const LayerMemory> layers = engine.info().memory;
  const EngineOptions& options = engine.options();
  PrefixOptions prefix{.divisible = IsDivisible(layers),
                       .state_tokens = StateTokens(layers, options.k_type, options.v_type)};
  KVCACHE_ASSIGN_OR_RETURN(made->prefixes_, PrefixCache::Make(made->states_, prefix));
  return made;
}

Result<SessionReuse> SessionPrefixes::Begin(std::span<const std::int32_t> tokens,
                                            std::span<const Position> restore_points) {
  End();
  KVCACHE_ASSIGN_OR_RETURN(
      PrefixPlan plan,
      prefixes_->Begin({.keys = KeysOf(tokens), .restore_points = restore_points}, 0.0));
  request_ = plan.request;
  begun_.assign(tokens.begin(), tokens.end());
  restore_points_.assign(restore_points.begin(), restore_points.end());

  // What the session has itself, if it can go back there.
  const auto held = session_.tokens().first(static_cast<std::size_t>(session_.unshifted()));
  const std::size_t most = std::min(held.size(), tokens.size() - 1);
  const auto same =
      std::mismatch(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(most), tokens.begin());
  const auto common = static_cast<Position>(same.first - held.begin());
  PrefixDifference difference{};
  if (const auto at = static_cast<std::size_t>(common); at < held.size()) {
    difference = {common, KeyOf(held[at]), KeyOf(tokens[at])};
  }
  Cache& cache = engine_.cache();
  KVCACHE_ASSIGN_OR_RETURN(const Position live, cache.PrepareRestore(session_.sequence(), common));
  bool restored = false;
  if (plan.resumed > live) {
    restored =
        session_
            .Restore(states_.Find(plan.state), tokens.first(static_cast<std::size_t>(plan.resumed)),
                     states_.LastState(plan.state, plan.resumed))
            .ok();
    if (!restored) plan.captures = prefixes_->NotRestored(plan.request);
  }
  if (!restored) KVCACHE_RETURN_IF_ERROR(session_.GoBackTo(common));
  PrefixStore::Loaded loaded;
  if (PrefixStore* const store = engine_.prefix_store(); store != nullptr) {
    loaded = store->Load(session_, tokens);
  }
  const Position begin = session_.position();
  const Position missing = std::exchange(plan.resumed, begin) - begin;
  if (missing > 0) plan.missed.insert(plan.missed.begin(), {missing, MissReason::kRestoreFailed});
  // The session can reach further than the prefixes that were kept.
  Position found = std::max<Position>(0, -missing);
  for (PrefixMiss& miss : plan.missed) {
    const Position taken = std::min(found, miss.tokens);
    miss.tokens -= taken;
    found -= taken;
  }
  std::erase_if(plan.missed, [](const PrefixMiss& miss) { return miss.tokens == 0; });
  plan.matched = std::max(plan.matched, begin);
  if (common > plan.difference.position) plan.difference = difference;

  std::erase_if(plan.captures, [&](Position at) { return at <= begin; });
  captures_.Schedule(cache, session_.sequence(), std::move(plan.captures));
  return SessionReuse{static_cast<PrefixMatch>(std::move(plan)), loaded.tokens, loaded.tiers,
                      loaded.ms, std::move(loaded.problem)};
}

void SessionPrefixes::StoreState(const Snapshot& state, Position length) {
  PrefixStore* const store = engine_.prefix_store();
  const auto prompt = static_cast<Position>(begun_.size());
  if (store == nullptr || !store->IsStateWorthStoring(length, prompt, restore_points_)) return;
  const auto held = session_.tokens();
  if (static_cast<std::size_t>(length) > held.size()) return;
  store->SaveState(state, LastState(engine_, session_.sequence(), length),
                   held.first(static_cast<std::size_t>(length)));
}

void SessionPrefixes::TakeCaptures() {
  captures_.Take(engine_.cache(), session_.sequence(), session_.unshifted(), states_, *prefixes_,
                 *request_,
                 [this](const Snapshot& state, Position length) { StoreState(state, length); });
}

void SessionPrefixes::Evaluated() {
  PrefixStore* const store = engine_.prefix_store();
  if (store == nullptr || !request_) return;
  const bool is_complete = session_.tokens().size() >= begun_.size();
  store->Save(session_,
              is_complete ? PrefixStore::Extent::kAll : PrefixStore::Extent::kWholeChunks);
  if (is_complete) TakeCaptures();
}

// Without memory the prefix is not kept, and the next prompt computes it again.
void SessionPrefixes::End() {
  if (!request_) return;
  const auto held = session_.tokens().first(static_cast<std::size_t>(session_.unshifted()));
  const std::size_t common = std::min(held.size(), begun_.size());
  const bool goes_on =
      std::equal(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(common), begun_.begin());
  if (goes_on && held.size() > begun_.size()) {
    (void)prefixes_->Append(*request_, KeysOf(held.subspan(begun_.size()))).ok();
  }
  Cache& cache = engine_.cache();
  if (goes_on) TakeCaptures();
  captures_.Cancel(cache, session_.sequence());
  if (goes_on && !held.empty() && session_.unshifted() == session_.position()) {
    auto state = states_.Take(session_.sequence(), session_.position());
    if (state.ok()) {
      StoreState(*states_.Find(*state), session_.position());
      (void)prefixes_->Extend(*request_, session_.position(), *state).ok();
    }
    if (PrefixStore* const store = engine_.prefix_store(); store != nullptr) {
      store->Save(session_, PrefixStore::Extent::kAll);
    }
  }
  prefixes_->Close(*request_, 0.0);
  request_.reset();
  while (prefixes_->Stats().tokens > most_tokens_) {
    if (prefixes_->Evict(prefixes_->Stats().tokens - most_tokens_) < 0) break;
  }
}

}  // namespace kvcache
