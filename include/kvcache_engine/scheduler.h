// Runs many requests at once on one engine: prompts that begin alike are computed once.
//
//   auto scheduler = *Scheduler::Make(*engine, {});
//   scheduler->Submit({.prompt = tokens, .max_tokens = 100, .on_done = …});     any thread
//   while (*scheduler->Step()) {                                                the engine's thread
//   }
//
// A step is one forward pass. It has a token of each request that generates, and parts of the prompts
// that wait: as many tokens as add at most `step_ms`, short prompts first. Without requests that generate,
// prompts have up to `step_tokens`. A request begins where the longest known prefix of its prompt ends,
// and what it evaluates becomes a prefix for others, also if it is cancelled.
//
// If the engine has a store (Engine::UseStore), a request also begins with what the store has. Other
// requests continue while it is read, and what is evaluated is written behind.
//
// If the pool has too few cells, the prefixes that are worth least go first. If there are none left, a
// request is parked: its tokens are kept as a prefix as long as possible, and it continues later. A
// request's logits have the same bits, whatever happened to it.
//
// Drafts of requests are verified in the same passes, and count as tokens of a step.
//
// In a model with an encoder, the encoder reads the prompt, in a pass of its own, and the decoder begins
// with its first token. Such a request shares nothing with others: what the encoder makes of a token
// depends on all of the text.
//
// Thread safety: Submit, Cancel and Wake from any thread; everything else from one thread at a time,
// the engine's. The functions of a request are called from Step. They may call Submit and Cancel.
// Design: docs/design/scheduler.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/drafter.h"
#include "kvcache/prefix_cache.h"
#include "kvcache_engine/engine.h"
#include "kvcache_engine/request_report.h"
#include "kvcache_engine/sampling.h"

namespace kvcache {

// Shares the processors among schedulers and other work of one process.
class StepTurns {
 public:
  virtual ~StepTurns() = default;
  // Waits until the step may begin. Each call is followed by EndStep, on the same thread.
  virtual void BeginStep() = 0;
  virtual void EndStep() = 0;
};

struct SchedulerOptions {
  // Tokens of one step, at most max_batch() of the engine; 0: as many.
  int step_tokens = 0;
  // Milliseconds that the parts of prompts in a step add at most to what its requests that generate take by
  // themselves, from 1 to kMaxStepMs. At least 16 tokens of prompts are read, if the step has room for them.
  int step_ms = 100;
  static constexpr int kMaxStepMs = 3'600'000;
  // Tokens of a known prefix that are computed again at most, in models whose state cannot be cut.
  Position recompute_bound = 512;
  // Bytes that the cache may take for sequences, prefixes and states; 0: no limit but the pool. With
  // EngineOptions::releases_memory they are the system's, with those of passes (CacheMemory::ResidentBytes
  // and Engine::WorkspaceBytes), else those in use (CacheMemory::UsedBytes); in both cases with the final states that
  // prefixes keep for a draft head.
  std::int64_t budget_bytes = 0;
  // In [0, 1]: the budget is also at most this share of the machine's free memory, and follows it; 0:
  // it does not. None: 0.5 with EngineOptions::releases_memory, else 0.
  std::optional<double> free_memory_share{};
  // Returns the machine's free memory in bytes, if it is known; empty: the system's figure.
  std::function<std::optional<std::int64_t>()> available_memory{};
  // Returns seconds since some moment, by which passes are measured; empty: the system's clock.
  std::function<double()> clock{};
  // Requests without a drafter get one that looks up what followed their last tokens before: in their own
  // text, and in all prefixes of the same salt.
  bool look_up_drafts = false;
  // Requests without a drafter get the engine's draft head, if it was opened with one (head_drafter.h), or
  // its draft model (Engine::UseDraftModel).
  bool use_engine_drafts = false;
  // For one request at a time, as in a chat: prefixes that the pool has no cells for go to host memory, up to three
  // contexts of tokens, and a request waits for room in the queue of the engine's store.
  bool one_at_a_time = false;
  // Each step that has requests takes a turn; must outlive the scheduler. Null: steps begin at once.
  StepTurns* turns = nullptr;
};

enum class RequestId : std::uint64_t {};

struct RequestResult {
  RequestId id{};
  Status status;  // if it is not Ok, the request failed with it
  StopReason stop = StopReason::kLength;
  std::vector<std::int32_t> tokens;  // generated, without an end-of-sequence token
  ReuseReport reuse{};
  Position evaluated = 0;           // tokens in its sequence at its end, the prompt's included
  std::int32_t decode_passes = 0;   // that evaluated generated tokens
  std::int32_t decoded_tokens = 0;  // evaluated by those passes, and kept
  std::int32_t shifts = 0;          // how often a full context was shifted
  SpeculationReport speculation{};
  double first_token_ms = 0.0;  // from Submit to the first sampled token
  double total_ms = 0.0;
};

// Decides which tokens a text may continue with. It belongs to one request while that lives, and is called on the
// engine's thread, in this order for each token.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Makes the logits of tokens that are not allowed minus infinity. Returns false if none is allowed.
  virtual bool Apply(std::span<float> logits) = 0;
  // Takes the token that was drawn. Returns false if it was not allowed.
  virtual bool Take(std::int32_t token) = 0;
  // Returns whether the text is complete: only a token that ends it may follow.
  virtual bool complete() const = 0;
};

struct ScheduledRequest {
  std::vector<std::int32_t> prompt;  // at least one token
  // The pictures of the prompt, ascending: the prompt has their ids (picture.h).
  std::vector<PromptPicture> pictures{};
  SamplingParams sampling{};
  // -1: until the model or the context ends; else a full context is shifted.
  std::int32_t max_tokens = -1;
  // The token that reaches max_tokens is evaluated too, for a text that continues the answer.
  bool evaluates_last = false;
  std::uint64_t salt = 0;  // requests with other salts share nothing
  // Adapters of the engine, at most one use of each. Requests with other adapters or scales share nothing.
  std::vector<AdapterUse> adapters{};
  // Lengths of the prompt where its messages end, ascending: later prompts may continue from there.
  std::vector<Position> restore_points{};
  // Proposes tokens, which are verified in the request's passes; null: none does, or one that looks them
  // up (SchedulerOptions). The text is the same. Only this request has it while it lives. A model with an
  // encoder does not use it.
  std::shared_ptr<Drafter> drafter{};
  // Proposed at once, at most 16; -1: as many as pay beside the other requests.
  int draft_tokens = -1;
  // Which tokens may be drawn; null: all. Such a request has no drafts. If no token is allowed it ends with
  // kUnsupported.
  std::shared_ptr<TokenConstraint> constraint{};
  // The request ends, with kInterrupted, once this is true while the request waits or its prompt is read; null: never. A
  // pass of this request alone ends in the middle.
  const std::atomic<bool>* interrupt = nullptr;
  // The functions below must not throw. If one does, its request ends with kInternal, or kOutOfMemory for
  // std::bad_alloc; what on_done throws is ignored.
  //
  // Called after each pass that read of the prompt, with the tokens of it that are evaluated or restored.
  std::function<void(Position evaluated)> on_prefill{};
  // Called once, when it gets its first sequence, with what is known then: `parked`, `recomputed` and
  // `restore_ms` may grow.
  std::function<void(const ReuseReport& reuse)> on_started{};
  // Called with each token. Returns whether to continue.
  std::function<bool(std::int32_t token)> on_token{};
  // Called with the logits [vocabulary] that each token is drawn from; `length` tokens were evaluated.
  std::function<void(Position length, std::span<const float> logits)> on_logits{};
  std::function<void(const RequestResult& result)> on_done{};  // once
};

// Where a request is that has not ended.
struct RequestState {
  RequestId id{};
  std::int32_t sequence = -1;  // -1: it waits
  bool parked = false;         // it waits because it made room for others
  bool in_prompt = true;       // its prompt is not evaluated yet
  Position prompt = 0;         // tokens
  Position restored = 0;       // of them, not computed again
  Position generated = 0;
  Position evaluated = 0;  // tokens in its sequence
  std::uint64_t salt = 0;
};

// What a scheduler did since it was made, as of its last step.
struct SchedulerStats {
  std::int64_t passes = 0;
  std::int64_t evaluated_tokens = 0;  // by passes that did not fail
  std::int64_t prompt_tokens = 0;     // of these, those of prompts that decoders read
  std::int64_t restored_tokens = 0;
  std::int64_t parked = 0;
  std::int64_t held_bytes = 0;      // counted in the budget now
  std::int64_t budget_bytes = 0;    // that held_bytes keeps to; 0: no limit but the pool
  std::int64_t max_held_bytes = 0;  // the same after any pass
  std::int64_t live = 0;            // requests with a sequence now
  std::int64_t waiting = 0;         // requests without one
  std::int64_t prefix_tokens = 0;   // as in PrefixStats
  std::int64_t prefix_states = 0;
  std::int64_t evicted_tokens = 0;
  std::int64_t tower_runs = 0;  // pictures whose rows a tower computed
  double tower_seconds = 0.0;
  double pass_seconds = 0.0;  // in forward passes and their logits
  // From a pass to the next step: choosing tokens, the functions of the requests, and what prefixes keep.
  double sampling_seconds = 0.0;
  double step_seconds = 0.0;  // in Step; the rest is the scheduler's own
};

class Scheduler {
 public:
  // `engine` must outlive the scheduler, which has all of its sequences, and keep its store. Errors: kUnsupported for a
  // cache without snapshots; kInvalidArgument for options out of range.
  static Result<std::unique_ptr<Scheduler>> Make(Engine& engine, const SchedulerOptions& options);
  // Returns the least budget with which a request may fill the context. REQUIRES: the engine has no tokens yet.
  static std::int64_t MinBudget(Engine& engine);
  // Returns whether a scheduler of the engine can have this budget (SchedulerOptions::budget_bytes). Errors:
  // kInvalidArgument, with the numbers. REQUIRES: as above.
  static Status CheckBudget(Engine& engine, std::int64_t bytes);
  // Drops the requests that are left, without calling their functions.
  virtual ~Scheduler() = default;

  // Adds a request. Errors: kInvalidArgument for an empty prompt, one that is longer than the context
  // (with the numbers), tokens outside of the vocabulary, ids of pictures that are not given, pictures that do not fit
  // into a pass, adapters that the engine does not have, restore points that do not ascend, or
  // sampling parameters out of range.
  virtual Result<RequestId> Submit(ScheduledRequest request) = 0;
  // Ends a request before the next step; its result says kInterrupted. Does nothing if it has ended.
  virtual void Cancel(RequestId request) = 0;

  // Runs one pass. Returns whether requests are left. Errors of a pass become results of its requests.
  virtual Result<bool> Step() = 0;
  // Steps until `stop` is true, and waits while there is nothing to do. Wake makes it look at `stop`.
  virtual Status Run(const std::atomic<bool>& stop) = 0;
  virtual void Wake() = 0;

  // Changes SchedulerOptions::budget_bytes, 0 for none. With EngineOptions::releases_memory, what the cache has
  // above it goes back to the system at once: prefixes go, then requests are parked. Returns the bytes that the
  // cache takes then. They are above the budget only if the system refuses to take memory back, if pins keep
  // prefixes, or if an empty cache takes more.
  virtual std::int64_t SetBudget(std::int64_t bytes) = 0;

  // Returns what a prompt would reuse now, and changes nothing. `salt`: as Engine::SaltOf says for a request with
  // adapters.
  virtual Result<PrefixMatch> Probe(std::span<const std::int32_t> prompt,
                                    std::uint64_t salt) const = 0;
  virtual Engine& engine() = 0;
  // The prefixes, to pin them and look at them.
  virtual PrefixCache& prefixes() = 0;
  virtual const PrefixCache& prefixes() const = 0;
  // Returns the time of the prefixes, in seconds.
  virtual double Now() const = 0;
  virtual SchedulerStats Stats() const = 0;  // from any thread
  // Returns the requests that have not ended, those with a sequence first.
  virtual std::vector<RequestState> Requests() const = 0;
  virtual std::size_t live() const = 0;     // requests with a sequence
  virtual std::size_t waiting() const = 0;  // requests without one
};

}  // namespace kvcache
