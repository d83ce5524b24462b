#include "replay/reuse_replay.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/prefixes/scheduled_captures.h"
#include "engine/prefixes/snapshot_states.h"
#include "kvcache/causal_cache.h"
#include "kvcache/cpu_backend.h"
#include "replay/trace_tokens.h"

namespace kvcache {
namespace {

using Clock = std::chrono::steady_clock;

struct Live {
  std::size_t index = 0;  // in the trace
  PrefixRequest request{};
  SequenceId sequence{};
  Position length = 0;  // tokens evaluated or restored
  ScheduledCaptures captures{};
};

class Replay {
 public:
  Replay(const Trace& trace, Cache& cache, const ReplayPass& pass, const ReplayOptions& options)
      : trace_(trace),
        cache_(cache),
        pass_(pass),
        options_(options),
        cells_(cache.memory()->FreeCells()),
        states_(cache),
        tokens_of_(trace, options.vocabulary),
        positions_(static_cast<std::size_t>(options.max_batch)),
        sequences_(static_cast<std::size_t>(options.max_batch)) {
    for (int s = options.slots; s-- > 0;) free_.push_back(SequenceId{s});
  }

  Status Init() {
    KVCACHE_ASSIGN_OR_RETURN(prefixes_,
                             PrefixCache::Make(states_, {.divisible = options_.divisible,
                                                         .state_tokens = options_.state_tokens}));
    return Status::Ok();
  }

  Status Run() {
    for (std::size_t i = 0; i < trace_.requests.size(); ++i) {
      if (options_.interrupt != nullptr && options_.interrupt->load(std::memory_order_relaxed)) {
        return {StatusCode::kCancelled,
                StrCat("interrupted after ", WithThousands(static_cast<std::int64_t>(i)), " of ",
                       WithThousands(std::ssize(trace_.requests)), " requests")};
      }
      Status status = Start(i);
      if (!status.ok()) return std::move(status).WithContext(StrCat("request ", i + 1));
      if (options_.progress) options_.progress(i + 1);
    }
    while (!live_.empty()) KVCACHE_RETURN_IF_ERROR(EndOldest());
    return Status::Ok();
  }

  ReplayReport Report() {
    report_.prefixes = prefixes_->Stats();
    report_.evicted_tokens = report_.prefixes.evicted_tokens;
    std::stable_sort(report_.missed.begin(), report_.missed.end(),
                     [](const auto& a, const auto& b) { return a.tokens > b.tokens; });
    return std::move(report_);
  }

 private:
  std::int64_t Need(std::size_t i) const {
    return std::int64_t{trace_.requests[i].input} + trace_.requests[i].output;
  }
  double now(std::size_t i) const { return trace_.requests[i].seconds; }

  void Miss(std::string_view reason, std::int64_t tokens) {
    const auto found = std::find_if(report_.missed.begin(), report_.missed.end(),
                                    [&](const ReplayMiss& miss) { return miss.reason == reason; });
    if (found != report_.missed.end()) {
      found->tokens += tokens;
    } else {
      report_.missed.push_back({std::string(reason), tokens});
    }
  }

  Status Start(std::size_t i) {
    const std::int64_t need = Need(i);
    report_.prompt_tokens += trace_.requests[i].input;
    if (need > options_.budget_tokens) {
      ++report_.too_large;
      Miss("larger than the budget", trace_.requests[i].input);
      return Status::Ok();
    }
    while (free_.empty() || live_need_ + need > options_.budget_tokens) {
      KVCACHE_RETURN_IF_ERROR(EndOldest());
    }
    const Clock::time_point start = Clock::now();
    tokens_.clear();
    tokens_of_.AppendPrompt(i, tokens_);
    keys_.assign(tokens_.begin(), tokens_.end());
    KVCACHE_ASSIGN_OR_RETURN(PrefixPlan plan, prefixes_->Begin({.keys = keys_}, now(i)));
    live_.push_back({.index = i, .request = plan.request, .sequence = free_.back(), .length = 0});
    free_.pop_back();
    live_need_ += need;
    return Prefill(live_.back(), plan, start);
  }

  Status Prefill(Live& live, PrefixPlan& plan, Clock::time_point start) {
    for (const PrefixMiss& miss : plan.missed) Miss(MissReasonName(miss.reason), miss.tokens);
    report_.max_recomputed = std::max(report_.max_recomputed, plan.matched - plan.resumed);
    if (plan.resumed > 0) {
      const Status restored = states_.Restore(plan.state, live.sequence, plan.resumed);
      if (restored.ok()) {
        live.length = plan.resumed;
        report_.reused_tokens += plan.resumed;
      } else {
        plan.captures = prefixes_->NotRestored(live.request);
        Miss(MissReasonName(MissReason::kRestoreFailed), plan.resumed);
      }
    }
    live.captures.Schedule(cache_, live.sequence, std::move(plan.captures));
    KVCACHE_RETURN_IF_ERROR(
        Evaluate(live, std::span(tokens_).subspan(static_cast<std::size_t>(live.length))));
    report_.first_token_ms.push_back(
        std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    // What is live can be shared already. With one slot, nothing else is live.
    return options_.slots > 1 || !options_.divisible ? Keep(live) : Status::Ok();
  }

  Status Keep(const Live& live) {
    KVCACHE_ASSIGN_OR_RETURN(const PrefixState state, states_.Take(live.sequence, live.length));
    return prefixes_->Extend(live.request, live.length, state);
  }

  // Lets go of prefixes until `count` more cells may be used.
  Status MakeRoom(std::int64_t count) {
    while (true) {
      const std::int64_t excess = used() + count - options_.budget_tokens;
      if (excess <= 0) return Status::Ok();
      if (prefixes_->Evict(excess) < 0) {
        return {StatusCode::kInternal,
                StrCat(excess, " tokens do not fit, although all that is live fits")};
      }
    }
  }

  // Runs a pass. Prefixes go as long as a part of the cache has no room for it.
  Status Pass(std::span<const std::int32_t> tokens, const Batch& batch) {
    while (true) {
      Status status = pass_(tokens, batch);
      if (status.code() != StatusCode::kCacheFull || prefixes_->Evict(std::ssize(tokens)) < 0) {
        return status;
      }
    }
  }

  Status Evaluate(Live& live, std::span<const std::int32_t> tokens) {
    std::fill(sequences_.begin(), sequences_.end(), live.sequence);
    while (!tokens.empty()) {
      const std::size_t count = std::min(tokens.size(), positions_.size());
      KVCACHE_RETURN_IF_ERROR(MakeRoom(static_cast<std::int64_t>(count)));
      std::iota(positions_.begin(), positions_.end(), live.length);
      KVCACHE_RETURN_IF_ERROR(
          Pass(tokens.first(count), {.positions = std::span(positions_).first(count),
                                     .sequences = std::span(sequences_).first(count)}));
      live.length += static_cast<Position>(count);
      live.captures.Take(cache_, live.sequence, live.length, states_, *prefixes_, live.request);
      tokens = tokens.subspan(count);
      report_.peak_tokens = std::max(report_.peak_tokens, used());
      report_.peak_bytes = std::max(report_.peak_bytes, cache_.memory()->UsedBytes());
    }
    return Status::Ok();
  }

  Status EndOldest() {
    Live live = std::move(live_.front());
    live_.pop_front();
    tokens_.clear();
    tokens_of_.AppendAnswer(live.index, tokens_);
    keys_.assign(tokens_.begin(), tokens_.end());
    KVCACHE_RETURN_IF_ERROR(prefixes_->Append(live.request, keys_));
    KVCACHE_RETURN_IF_ERROR(Evaluate(live, tokens_));
    KVCACHE_RETURN_IF_ERROR(Keep(live));
    prefixes_->Close(live.request, now(live.index));
    live.captures.Cancel(cache_, live.sequence);
    free_.push_back(live.sequence);
    live_need_ -= Need(live.index);
    return cache_.Remove(live.sequence, 0, kEndOfSequence);
  }

  std::int64_t used() const { return cells_ - cache_.memory()->FreeCells(); }

  const Trace& trace_;
  Cache& cache_;
  const ReplayPass& pass_;
  const ReplayOptions& options_;
  const std::int64_t cells_;
  SnapshotStates states_;
  std::unique_ptr<PrefixCache> prefixes_;
  const TraceTokens tokens_of_;
  std::vector<SequenceId> free_;
  std::deque<Live> live_;
  std::int64_t live_need_ = 0;
  std::vector<std::int32_t> tokens_;
  std::vector<PrefixKey> keys_;
  std::vector<Position> positions_;
  std::vector<SequenceId> sequences_;
  ReplayReport report_;
};

}  // namespace

Result<ReplayReport> ReplayTrace(const Trace& trace, Cache& cache, const ReplayPass& pass,
                                 const ReplayOptions& options) {
  return Guarded("no memory to replay the trace", [&]() -> Result<ReplayReport> {
    Replay replay(trace, cache, pass, options);
    KVCACHE_RETURN_IF_ERROR(replay.Init());
    KVCACHE_RETURN_IF_ERROR(replay.Run());
    return replay.Report();
  });
}

Result<ReplayReport> ReplayWithoutModel(const Trace& trace, ReplayOptions options) {
  KVCACHE_ASSIGN_OR_RETURN(const auto backend, MakeCpuBackend({.threads = 1}));
  const std::unique_ptr<Cache> cache = MakeCausalCache();
  options.vocabulary = TraceTokens::kLargestVocabulary;
  if (options.budget_tokens < 1 || options.budget_tokens > std::numeric_limits<int>::max()) {
    return InvalidArgument(StrCat("the budget is ", options.budget_tokens,
                                  " tokens; must be from 1 to ", std::numeric_limits<int>::max()));
  }
  const int cells = static_cast<int>(options.budget_tokens);
  options.max_batch = std::min(options.max_batch, cells);
  KVCACHE_RETURN_IF_ERROR(cache->Init(*backend, {.max_sequences = options.slots,
                                                 .capacity = 1,
                                                 .max_batch = options.max_batch,
                                                 .cells = cells}));
  const ReplayPass pass = [&](std::span<const std::int32_t> /*tokens*/, const Batch& batch) {
    return cache->StartForward(batch, ForwardMode::kCompute);
  };
  return ReplayTrace(trace, *cache, pass, options);
}

}  // namespace kvcache
