#include "app/commands/resume_through.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/seconds_since.h"
#include "base/strings.h"
#include "engine/persist/store_fingerprint.h"
#include "engine/persist/stored_state.h"
#include "store/content_hash.h"

namespace kvcache::app {
namespace {

using Clock = std::chrono::steady_clock;

StoreTier StoreTierOf(ResumeTier tier) {
  if (tier == ResumeTier::kRemote) return StoreTier::kRemote;
  return tier == ResumeTier::kDisk ? StoreTier::kDisk : StoreTier::kMemory;
}

Result<std::unique_ptr<Store>> OpenTier(ResumeTier tier, const StoreFlags& stores) {
  if (tier == ResumeTier::kMemory) {
    KVCACHE_ASSIGN_OR_RETURN(auto store, MakeMemoryStore());
    return std::unique_ptr<Store>(std::move(store));
  }
  for (const std::string& name : stores.names()) {
    if (StoreFlags::TierOf(name) == StoreTierOf(tier)) return stores.Open(name);
  }
  return InvalidArgument(tier == ResumeTier::kRemote
                             ? "--via remote needs a server: give --store redis://HOST"
                             : "--via disk needs a directory: give --store DIR");
}

// The object's key is the text and the salt of its adapters; under the fingerprint of the model and its cache.
Result<ObjectId> IdOf(Engine& engine, Store& store, std::span<const std::int32_t> tokens,
                      std::uint64_t salt) {
  KVCACHE_ASSIGN_OR_RETURN(const StoreHash model, ModelHash(engine, store));
  KVCACHE_ASSIGN_OR_RETURN(const std::string text, FingerprintText(engine, model));
  ObjectId id;
  KVCACHE_ASSIGN_OR_RETURN(id.fingerprint, store::StoreHashOf(std::as_bytes(std::span(text))));
  std::vector<std::byte> key(std::as_bytes(tokens).begin(), std::as_bytes(tokens).end());
  const auto salted = std::as_bytes(std::span(&salt, 1));
  if (salt != 0) key.insert(key.end(), salted.begin(), salted.end());
  KVCACHE_ASSIGN_OR_RETURN(id.key, store::StoreHashOf(key));
  return id;
}

Status PutState(Engine& engine, const Snapshot& state, std::span<const float> last, Store& store,
                const ObjectId& id) {
  KVCACHE_ASSIGN_OR_RETURN(const store::StoreBytes bytes,
                           WriteStoredState(engine.cache(), state, last));
  return store.Put(id, bytes.span());
}

}  // namespace

Result<ResumeTier> ParseResumeTier(const std::string& name) {
  const auto* const found =
      std::find(std::begin(kResumeTierNames), std::end(kResumeTierNames), name);
  if (found != std::end(kResumeTierNames)) {
    return static_cast<ResumeTier>(found - std::begin(kResumeTierNames));
  }
  return InvalidArgument(Quoted(name) + " is no tier; the tiers are live, memory, disk and remote");
}

Result<double> ResumeThrough(ResumeTier tier, const StoreFlags& stores, Engine& engine,
                             Session& session) {
  const std::vector<std::int32_t> tokens(session.tokens().begin(), session.tokens().end());
  KVCACHE_ASSIGN_OR_RETURN(auto state, engine.cache().snapshots()->TakeSnapshot(
                                           session.sequence(), 0, session.position()));
  const std::span<const float> known = session.LastState();
  const std::vector<float> last(known.begin(), known.end());
  if (tier == ResumeTier::kLive) {
    KVCACHE_RETURN_IF_ERROR(session.GoBackTo(0));
    const Clock::time_point start = Clock::now();
    KVCACHE_RETURN_IF_ERROR(session.Restore(state.get(), tokens, last));
    return MillisecondsSince(start);
  }
  KVCACHE_ASSIGN_OR_RETURN(auto store, OpenTier(tier, stores));
  const std::uint64_t salt = engine.SaltOf(0, engine.adapters_of(session.sequence()));
  KVCACHE_ASSIGN_OR_RETURN(const ObjectId id, IdOf(engine, *store, tokens, salt));
  KVCACHE_RETURN_IF_ERROR(PutState(engine, *state, last, *store, id));
  state.reset();
  KVCACHE_RETURN_IF_ERROR(session.GoBackTo(0));
  if (tier != ResumeTier::kMemory) {  // as another process would
    store.reset();
    KVCACHE_ASSIGN_OR_RETURN(store, OpenTier(tier, stores));
  }
  const Clock::time_point start = Clock::now();
  KVCACHE_RETURN_IF_ERROR(store->Get(id, [&](std::span<const std::byte> payload) -> Status {
    KVCACHE_ASSIGN_OR_RETURN(
        const StoredState stored,
        ReadStoredState(engine.cache(), payload, static_cast<std::int64_t>(last.size())));
    return session.Restore(stored.snapshot.get(), tokens, stored.last);
  }));
  const double milliseconds = MillisecondsSince(start);
  KVCACHE_RETURN_IF_ERROR(store->Remove(id));
  return milliseconds;
}

}  // namespace kvcache::app
