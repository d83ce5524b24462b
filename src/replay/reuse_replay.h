// Replays a trace on a PrefixCache over a real cache, and counts what is reused.
//
// Requests begin in the trace's order, and at most `slots` are live: request i ends when request
// i + slots begins. A request restores what is known, evaluates the rest of its prompt in passes, and
// at its end its answer. Before each pass the prefix cache lets go of what is in the way, so that the
// cells in use never exceed the budget.
//
// A request that is larger than the budget is computed and not kept: it claims no cells and reuses
// nothing. Its tokens count as prompt tokens and as missed ("larger than the budget"). If requests that
// are live together do not fit, a new one waits for the oldest to end.
//
// Thread safety: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/batch.h"
#include "kvcache/cache.h"
#include "kvcache/prefix_cache.h"
#include "replay/trace.h"

namespace kvcache {

// Evaluates one pass of one sequence.
using ReplayPass = std::function<Status(std::span<const std::int32_t> tokens, const Batch& batch)>;

struct ReplayOptions {
  std::int64_t budget_tokens = 0;  // cells that may be in use, at most those of the cache
  int slots = 1;                   // requests that are live at once, at most max_sequences
  int max_batch = 1;               // tokens of a pass
  std::int32_t vocabulary = 0;     // of the tokens: TraceTokens
  bool divisible = true;           // states restore at every length: full and chunked attention
  Position state_tokens = 0;       // PrefixOptions::state_tokens
  const std::atomic<bool>* interrupt = nullptr;  // ends the replay with kCancelled; null: never
  std::function<void(std::size_t requests)> progress{};  // is called after each request
};

struct ReplayMiss {
  std::string reason;
  std::int64_t tokens = 0;
};

struct ReplayReport {
  std::int64_t prompt_tokens = 0;
  std::int64_t reused_tokens = 0;
  std::int64_t evicted_tokens = 0;
  std::int64_t peak_tokens = 0;          // cells in use
  std::int64_t peak_bytes = 0;           // of keys and values in use
  std::int64_t too_large = 0;            // requests that are larger than the budget
  Position max_recomputed = 0;           // known tokens that one request computed again
  std::vector<ReplayMiss> missed{};      // what was not reused, most first
  std::vector<double> first_token_ms{};  // of each request: from its beginning to its first logits
  PrefixStats prefixes{};                // at the end
};

// Replays `trace` on an empty cache. Errors: those of the cache
// and of `pass`; kCancelled; kOutOfMemory.
Result<ReplayReport> ReplayTrace(const Trace& trace, Cache& cache, const ReplayPass& pass,
                                 const ReplayOptions& options);

// Replays it on a cache of `budget_tokens` cells without memory for keys and values. Nothing is
// computed. The vocabulary of the options is not used. Errors also: kInvalidArgument for a budget that
// is no number of cells.
Result<ReplayReport> ReplayWithoutModel(const Trace& trace, ReplayOptions options);

}  // namespace kvcache
