// The prefixes of a scheduler's requests: what a request restores, and what it leaves for others.
//
//   Begin ─► Restore ─► TakeCaptures, Keep, as often as tokens are evaluated ─► Leave
//
// Thread safety: the engine's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/prefixes/snapshot_states.h"
#include "engine/scheduler/job.h"
#include "kvcache/prefix_cache.h"

namespace kvcache {

class JobPrefixes {
 public:
  // `engine` and `options` must outlive it.
  JobPrefixes(Engine& engine, const SchedulerOptions& options);
  // Makes the prefix cache. Errors: its.
  Status Open();

  // Begins the request's prefix. Errors: those of PrefixCache::Begin.
  Result<PrefixPlan> Begin(Job& job);
  // Brings the request's empty sequence to the plan's state. Prefixes go as long as there is no room for it, and then
  // perhaps a part of this one. If it fails, the sequence is empty, and the plan has the captures of that case.
  void Restore(Job& job, PrefixPlan& plan);
  // Gives the captures that have fired to the prefix and to the store, and chunks to the store.
  void TakeCaptures(Job& job);
  // Gives the prefix and the store a state of all that was evaluated.
  void Keep(Job& job);
  // Returns whether a state that cannot be cut is due at the request's length, so that others compute little again.
  bool IsKeepDue(const Job& job) const {
    return !divisible_ && job.length % options_.recompute_bound == 0;
  }
  // Ends the request's prefix, with the keys of all of its tokens.
  void Close(Job& job);
  // Keeps everything that was evaluated, and empties the sequence.
  void Leave(Job& job);
  // Empties the sequence, and drops its captures.
  void Empty(Job& job);

  // Returns whether a live request computes a long part of this one's prompt that it could reuse soon.
  bool ShouldWait(const Job& job, std::span<const JobPtr> live) const;
  // Lets the request begin with what a live one evaluated of the same text, prompt or answer, up to its newest token.
  // REQUIRES: Begin follows.
  void ShareLive(const Job& job, std::span<const JobPtr> live);
  // Returns what the tokens would reuse now. Its state is that of the prefix cache, also if a live request has more.
  Result<PrefixMatch> Probe(std::span<const std::int32_t> tokens, std::uint64_t salt,
                            std::span<const JobPtr> live = {},
                            std::span<const PrefixRange> pictures = {}) const;

  // Returns whether states can be cut at every length.
  bool divisible() const { return divisible_; }
  const SnapshotStates& states() const { return states_; }
  PrefixCache& cache() { return *prefixes_; }
  const PrefixCache& cache() const { return *prefixes_; }
  // Returns the time of the prefixes, in seconds.
  double Now() const;

 private:
  // The live request that has evaluated the most of a text that another one could continue from.
  struct Sharer {
    Job* job = nullptr;   // null: none
    Position tokens = 0;  // of the text
  };
  Sharer FindSharer(std::span<const std::int32_t> tokens, std::uint64_t salt,
                    std::span<const JobPtr> live) const;
  // Gives the prefix the keys that it lacks. Returns whether it has all.
  bool AppendKeys(Job& job);
  Status RestoreState(const Job& job, PrefixPlan& plan);

  Engine& engine_;
  const SchedulerOptions& options_;
  const bool divisible_;
  SnapshotStates states_;
  std::unique_ptr<PrefixCache> prefixes_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace kvcache
