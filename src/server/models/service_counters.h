// What a text service has done, for /metrics and the page.
//
// Thread safety: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvcache_engine/scheduler.h"

namespace kvcache::server {

// The upper bounds of the times that are counted, in seconds; longer ones come last.
inline constexpr std::array<double, 16> kSecondsBounds = {
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 300};

struct SecondsHistogram {
  std::array<std::int64_t, kSecondsBounds.size() + 1> counts{};  // by bound
  double sum = 0.0;

  void Add(double seconds);
  SecondsHistogram& operator+=(const SecondsHistogram& other);
};

// How requests ended: as StopReason says, or with an error.
inline constexpr std::size_t kFailedEnd = static_cast<std::size_t>(StopReason::kInterrupted) + 1;
inline constexpr std::size_t kRequestEnds = kFailedEnd + 1;
inline constexpr std::size_t kMissReasons =
    static_cast<std::size_t>(MissReason::kPartOfPicture) + 1;

struct ServiceCounters {
  std::int64_t requests = 0;
  std::array<std::int64_t, kRequestEnds> ended{};
  // Tokens.
  std::int64_t generated_tokens = 0;
  std::int64_t evaluated_tokens = 0;  // of prompts, answers and drafts, after each pass
  std::int64_t computed_tokens = 0;   // of these, of prompts
  std::int64_t reused_tokens = 0;     // of prompts of requests that ended
  std::array<std::int64_t, kStoreTiers> reused_by_tier{};  // of these, from stores
  std::array<std::int64_t, kMissReasons> missed_tokens{};  // why others were computed
  std::int64_t evicted_tokens = 0;                         // of prefixes
  std::int64_t parked = 0;                                 // requests that made room for others
  SecondsHistogram first_token{};                          // from Submit
  SecondsHistogram between_tokens{};
  SecondsHistogram request{};  // from Submit to the end
  // Now.
  std::int64_t running = 0;  // submitted and not done
  std::int64_t waiting = 0;  // of them, without a sequence
  std::int64_t held_bytes = 0;
  std::int64_t budget_bytes = 0;  // that held_bytes keeps to; 0: no limit but the pool
  std::int64_t prefix_tokens = 0;
  std::int64_t prefix_states = 0;

  ServiceCounters& operator+=(const ServiceCounters& other);
  // Returns the same for a service that has ended.
  ServiceCounters WithoutNow() const;
};

}  // namespace kvcache::server
