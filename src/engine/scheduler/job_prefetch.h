// Asks memory for what a step looks at of each request: a pass has displaced it from the processor's caches.
//
// Thread safety: the engine's thread.
#pragma once

#include <span>

#include "base/prefetch.h"
#include "engine/scheduler/job.h"

namespace kvcache {

// What the choice of a pass's tokens looks at.
inline void PrefetchForChoice(std::span<const JobPtr> live) {
  for (const JobPtr& job : live) PrefetchObject(*job, 2 * kCacheLine);
  for (const JobPtr& job : live) Prefetch(job->tokens.data() + job->length);
}

// What the delivery of a pass's result looks at, but for the next function's.
inline void PrefetchForDelivery(const Job& job) {
  PrefetchObject(job, 2 * kCacheLine);
  PrefetchObject(job.result);
  PrefetchObject(job.request);
  PrefetchObject(job.sampler, 2 * kCacheLine);
  // Behind the generator's state, which is most of a sampler.
  Prefetch(reinterpret_cast<const char*>(&job.sampler + 1) - kCacheLine);
  Prefetch(reinterpret_cast<const char*>(&job.sampler + 1) - 1);
}

// Where a token goes that is drawn. REQUIRES: PrefetchForDelivery, some time ago.
inline void PrefetchTexts(const Job& job) {
  PrefetchToWrite(job.tokens.data() + job.tokens.size());
  PrefetchToWrite(job.result.tokens.data() + job.result.tokens.size());
}

}  // namespace kvcache
