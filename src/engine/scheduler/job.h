// A request that a scheduler has, with or without a sequence.
//
// Thread safety: the engine's thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/persist/prefix_store.h"
#include "engine/persist/store_loader.h"
#include "engine/prefixes/scheduled_captures.h"
#include "engine/scheduler/job_pictures.h"
#include "kvcache/drafter.h"
#include "kvcache_engine/scheduler.h"

namespace kvcache {

// Who proposes tokens for a request, and what is proposed for the next pass.
struct JobDrafts {
  std::shared_ptr<Drafter> drafter{};  // null: it failed
  int fixed = -1;                      // drafts of every round; -1: as many as pay
  DraftRates* rates = nullptr;  // of all drafters of the scheduler's own kind; null: another kind
  bool begun = false;
  std::size_t told = 0;                  // tokens of the request that the drafter knows
  std::int32_t shifts = 0;               // of the context, when the drafter learned of them
  int wanted = 0;                        // drafts for the next pass
  std::vector<std::int32_t> proposed{};  // for the next pass
};

// What a request has to do with the engine's store.
struct JobStore {
  std::shared_ptr<StoreLoad> load{};  // in progress
  std::chrono::steady_clock::time_point began{};
  bool saves = false;       // `known` is complete: what is evaluated is stored
  bool is_first = false;    // the request's report does not have the load's tokens yet
  bool has_output = false;  // the sequence has the stored output of an encoder
  Position loaded = 0;      // tokens that came from the store
  std::vector<std::pair<Position, StoreTier>> pieces{};  // those of the report, in order
  std::vector<Position> captures{};                      // that the request takes after the load
  PrefixStore::Known known{};                            // what the store has of the request's text

  bool is_loading() const { return load != nullptr; }
};

struct alignas(64) Job {
  // What the choice of each pass's tokens looks at: two cache lines.
  std::vector<std::int32_t> tokens{};  // prompt and generated
  Position length = 0;                 // of them evaluated, while it has a sequence
  SequenceId sequence{};
  Position furthest = 0;                    // the greatest length of all
  int failures = 0;                         // passes that failed at `furthest`
  bool in_prompt = true;                    // has not sampled since it got its sequence
  bool has_prefix = false;                  // `prefix` is open
  bool can_keep = true;                     // false after a pass whose logits are no numbers
  bool started = false;                     // had a sequence before
  bool evaluates_last = false;              // the request's
  Position prefix_tokens = 0;               // keys that the prefix has
  std::unique_ptr<JobDrafts> drafts{};      // null: it has none
  std::unique_ptr<JobPictures> pictures{};  // of `tokens`; null: none
  ScheduledCaptures captures{};
  PrefixRequest prefix{};
  JobStore store{};
  RequestId id{};
  // What its beginning, its samples and its end look at.
  std::chrono::steady_clock::time_point submitted{};
  RequestResult result{};
  ScheduledRequest request;  // with normal adapters
  std::uint64_t salt = 0;    // of its texts: the request's, with its adapters
  Sampler sampler;

  // Returns the tokens that are not evaluated.
  Position pending() const { return static_cast<Position>(tokens.size()) - length; }
  // Returns whether its last token was drawn and only has to be evaluated.
  bool is_complete() const {
    return evaluates_last && request.max_tokens > 0 &&
           result.tokens.size() >= static_cast<std::size_t>(request.max_tokens);
  }
  std::span<const PrefixRange> picture_ranges() const {
    return pictures == nullptr ? std::span<const PrefixRange>() : pictures->ranges;
  }
  bool is_interrupted() const {
    return request.interrupt != nullptr && request.interrupt->load(std::memory_order_relaxed);
  }
  // A shifted context is no prefix of any text: its keys are rotated.
  bool shifted() const { return result.shifts > 0; }
};

using JobPtr = std::unique_ptr<Job>;

// Returns the most of the job's next `count` tokens that divide no picture whose cells see each other.
inline Position FitWhole(const Job& job, Position count) {
  if (job.pictures == nullptr) return count;
  const PromptPicture* const cut = PictureCutAt(job.pictures->list, job.length + count);
  if (cut == nullptr || !cut->picture->shape().is_whole) return count;
  return std::max<Position>(0, cut->begin - job.length);
}

inline bool WaitsForEncoder(const Engine& engine, const Job& job) {
  return engine.has_encoder() && job.length == 0 && !job.store.has_output;
}

// Returns whether passes evaluate the job's prompt, or the tokens that it had when it was parked.
inline bool ReadsPrompt(const Engine& engine, const Job& job) {
  return job.in_prompt && !WaitsForEncoder(engine, job) && !job.store.is_loading();
}

}  // namespace kvcache
