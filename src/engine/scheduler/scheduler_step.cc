// One pass: which tokens it has, and what they become.
#include <algorithm>
#include <new>
#include <utility>

#include "base/seconds_since.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/sequence_states.h"
#include "engine/request/check_logits.h"
#include "engine/scheduler/prefill_budget.h"
#include "engine/scheduler/scheduler_impl.h"

namespace kvcache {
namespace {

constexpr int kMostFailures = 2;

// Adds the seconds of its life, by the options' clock, to a sum.
class AddSeconds {
 public:
  AddSeconds(const SchedulerOptions& options, double& sum)
      : clock_(options.clock), sum_(sum), start_(Now()) {}
  ~AddSeconds() { sum_ += Now() - start_; }
  AddSeconds(const AddSeconds&) = delete;
  AddSeconds& operator=(const AddSeconds&) = delete;

 private:
  double Now() const { return clock_ ? clock_() : SecondsSince({}); }

  const std::function<double()>& clock_;
  double& sum_;
  const double start_;
};

}  // namespace

Result<bool> SchedulerImpl::Step() {
  RunStep();
  Publish();
  return !live_.empty() || waiting() > 0;
}

void SchedulerImpl::Publish() {
  const PrefixStats prefixes = prefixes_->Stats();
  const std::int64_t budget = governor_.Budget(stats_.held_bytes, Clock::now());
  const std::lock_guard lock(mutex_);
  published_ = stats_;
  published_.budget_bytes = budget == MemoryGovernor::kNoLimit ? 0 : budget;
  published_.live = std::ssize(live_);
  published_.waiting = std::ssize(waiting_) + std::ssize(inbox_);
  published_.prefix_tokens = prefixes.tokens;
  published_.prefix_states = prefixes.states;
  published_.evicted_tokens = prefixes.evicted_tokens;
}

void SchedulerImpl::RunStep() {
  const AddSeconds time(options_, stats_.step_seconds);
  FetchJobs();
  TakeInbox();
  Admit();
  for (std::size_t i = 0; i < live_.size();) {
    const auto goes_on = MakeContext(*live_[i]);
    if (goes_on.ok() && *goes_on) {
      ++i;
    } else if (goes_on.ok()) {
      FinishAt(i, StopReason::kLength);
    } else {
      FinishAt(i, StopReason::kInterrupted, goes_on.status());
    }
  }
  AdvanceLoads();
  ProposeDrafts();
  Compose();
  if (tokens_.empty()) WaitForLoads();
  if (!tokens_.empty() && MakeRoom()) Pass();
  stats_.most_held_bytes = std::max(stats_.most_held_bytes, HeldBytes());
  KeepToBudget();
  stats_.held_bytes = HeldBytes();
}

void SchedulerImpl::Pass() {
  BeginRound();
  Status status = RunPass();
  if (!status.ok() && GiveUpRound(status)) status = RunPass();
  ++stats_.passes;
  if (!status.ok()) return PassFailed(status);
  stats_.evaluated_tokens += static_cast<std::int64_t>(tokens_.size());
  PrefillWork work;
  for (const JobPtr& job : live_) {
    if (ReadsPrompt(*job)) work.Add(job->length, job->chunk);
  }
  stats_.prompt_tokens += work.tokens();
  JudgeRound();
  if (encoding_ != nullptr) {
    MeasureEncoder();
  } else {
    CountCosts(work);
  }
  AfterPass();
}

// A prompt beside decodes says little of the costs of drafts: its tokens are as dear as its history is long.
void SchedulerImpl::CountCosts(const PrefillWork& work) {
  const int tokens = static_cast<int>(tokens_.size());
  const int rows = tokens - work.tokens();
  if (rows == 0 || work.tokens() == 0) costs_.Count(tokens, last_pass_seconds_);
  plan_.CountPass(last_pass_seconds_);
  pace_.Count(rows, work, last_pass_seconds_);
}

// A token of each job that generates comes first, then prompts.
void SchedulerImpl::Compose() {
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  parents_.clear();
  for (const JobPtr& job : live_) job->chunk = job->drafted = 0;
  std::size_t left = static_cast<std::size_t>(step_tokens_);
  const std::size_t count = live_.size();
  encoding_ = NextToEncode();
  if (encoding_ != nullptr) {
    AddToBatch(*encoding_, 1);
    turn_ = (turn_ + 1) % count;
    return;
  }
  const bool any_prompt = std::any_of(live_.begin(), live_.end(),
                                      [this](const JobPtr& job) { return ReadsPrompt(*job); });
  // If a step is one token, all take turns.
  const std::size_t for_prompts = any_prompt ? PartForPrompts() : 0;
  const std::size_t least = for_prompts < left ? for_prompts : turn_ % 2;
  for (std::size_t i = 0; i < count && left > least; ++i) {
    Job& job = *live_[(turn_ + i) % count];
    if (job.in_prompt) continue;
    AddToBatch(job, 1);
    AddDraftsToBatch(job);
    left -= static_cast<std::size_t>(job.chunk);
  }
  if (count > 0) turn_ = (turn_ + 1) % count;

  ComposePrompts(static_cast<Position>(left));
  ComposeTrees();
}

// The prompt with the fewest tokens left goes first. So that a long one goes on however many short ones come, the one
// that arrived first begins each fourth pass.
void SchedulerImpl::ComposePrompts(Position room) {
  const int rows = static_cast<int>(tokens_.size());
  if (pace_.MeasuresRows(rows)) return;
  prompts_.clear();
  for (const JobPtr& job : live_) {
    if (ReadsPrompt(*job)) prompts_.push_back(job.get());
  }
  std::sort(prompts_.begin(), prompts_.end(), [](const Job* a, const Job* b) {
    return std::pair(a->pending(), a->id) < std::pair(b->pending(), b->id);
  });
  if (pace_.BeginsWithOldest()) {
    const auto oldest = std::min_element(prompts_.begin(), prompts_.end(),
                                         [](const Job* a, const Job* b) { return a->id < b->id; });
    if (oldest != prompts_.end()) std::rotate(prompts_.begin(), oldest, oldest + 1);
  }
  PrefillBudget budget(pace_, room, rows);
  int captures = 0;
  for (Job* const job : prompts_) {
    const Position left = job->pending();
    const Position tokens = LimitCaptures(*job, budget.Offer(job->length, left), captures);
    if (tokens < 1) continue;
    budget.Take(job->length, left, tokens);
    AddToBatch(*job, tokens);
  }
}

// Ends the chunk before a capture that the pass has no state for.
Position SchedulerImpl::LimitCaptures(const Job& job, Position count, int& captures) const {
  for (const Position at : job.captures.lengths()) {
    if (at <= job.length) continue;
    if (at > job.length + count) break;
    if (captures == kMostCapturesPerPass) return at - 1 - job.length;
    ++captures;
  }
  return count;
}

void SchedulerImpl::AddToBatch(Job& job, Position count) {
  job.chunk = count;
  for (Position i = 0; i < count; ++i) {
    tokens_.push_back(job.tokens[static_cast<std::size_t>(job.length + i)]);
    positions_.push_back(job.length + i);
    sequences_.push_back(job.sequence);
  }
  job.row = tokens_.size() - 1;
}

void SchedulerImpl::AddDraftsToBatch(Job& job) {
  if (job.drafts == nullptr) return;
  const DraftTree& tree = job.drafts->tree;
  for (std::size_t i = 0; i < tree.size(); ++i) {
    tokens_.push_back(tree.tokens[i]);
    positions_.push_back(job.length + tree.Depth(static_cast<std::int32_t>(i)));
    sequences_.push_back(job.sequence);
  }
  job.drafted = static_cast<Position>(tree.size());
  job.chunk += job.drafted;
}

Status SchedulerImpl::RunPass() {
  last_pass_seconds_ = 0.0;
  const AddSeconds time(options_, stats_.pass_seconds);
  const AddSeconds last(options_, last_pass_seconds_);
  KVCACHE_RETURN_IF_ERROR(encoding_ != nullptr
                              ? engine_.Encode(encoding_->request.prompt, encoding_->sequence)
                              : engine_.Forward({.tokens = tokens_,
                                                 .positions = positions_,
                                                 .sequences = sequences_,
                                                 .parents = parents_}));
  rows_.clear();
  try {
    for (const JobPtr& job : live_) {
      if (!job->samples()) continue;
      job->logits_row = rows_.size();
      for (Position i = 0; i <= job->drafted; ++i) {
        rows_.push_back(static_cast<std::int32_t>(job->row) + i);
      }
    }
    if (rows_.empty()) return Status::Ok();
    const std::size_t values = rows_.size() * static_cast<std::size_t>(engine_.vocabulary_size());
    if (logits_.capacity() < values) {
      logits_ = {};
      logits_.reserve(values);
    }
    logits_.resize(values);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kOutOfMemory,
            StrCat("no memory for the logits of ", rows_.size(), " rows")};
  }
  return engine_.Logits(rows_, logits_.data());
}

void SchedulerImpl::FetchJobs() const {
  constexpr std::size_t kLine = 64;
  for (const JobPtr& job : live_) {
    const char* const first = reinterpret_cast<const char*>(job.get());
    __builtin_prefetch(first);
    __builtin_prefetch(first + kLine);
  }
  for (const JobPtr& job : live_) __builtin_prefetch(job->tokens.data() + job->length);
}

void SchedulerImpl::AfterPass() {
  FetchJobs();
  const auto vocabulary = static_cast<std::size_t>(engine_.vocabulary_size());
  for (std::size_t i = 0; i < live_.size();) {
    Job& job = *live_[i];
    const bool samples = job.samples();
    const Position drafted = std::exchange(job.drafted, 0);
    Position chunk = std::exchange(job.chunk, 0);
    if (drafted > 0) chunk = job.drafts->kept;
    job.length += chunk;
    if (job.length > job.furthest) {
      job.furthest = job.length;
      job.failures = 0;
    }
    if (drafted > 0) {
      if (EndOfRound(i)) ++i;
      continue;
    }
    if (!samples) {
      TakeCaptures(job);
      ++i;
      continue;
    }
    const std::span<const float> logits =
        std::span(logits_).subspan(job.logits_row * vocabulary, vocabulary);
    const Status finite = [&] {
      const AddSeconds time(options_, stats_.pass_seconds);
      return CheckLogits(engine_, logits, job.length);
    }();
    if (!finite.ok()) {
      job.sound = false;
      FinishAt(i, StopReason::kInterrupted, finite);
      continue;
    }
    TakeCaptures(job);
    const bool prompt_ends = std::exchange(job.in_prompt, false);
    if (prompt_ends) SaveOutput(job);
    if (prompt_ends || (!divisible_ && job.length % options_.recompute_bound == 0)) Keep(job);
    if (Sample(job, job.length, logits)) {
      ++i;
    } else {
      FinishAt(i, job.result.stop, job.result.status);
    }
  }
}

bool SchedulerImpl::Sample(Job& job, Position length, std::span<const float> logits) {
  const AddSeconds time(options_, stats_.sampling_seconds);
  RequestResult& result = job.result;
  if (job.request.on_logits) job.request.on_logits(length, logits);
  result.stop = StopReason::kLength;
  job.drawn = -1;
  if (job.request.max_tokens >= 0 &&
      result.tokens.size() >= static_cast<std::size_t>(job.request.max_tokens)) {
    return false;
  }
  try {
    Draw(job, logits);
  } catch (const std::bad_alloc&) {
    result.stop = StopReason::kInterrupted;
    result.status = {StatusCode::kOutOfMemory, "no memory for the request's next token"};
  }
  if (result.stop != StopReason::kLength) return false;
  if (job.request.on_token && !job.request.on_token(job.tokens.back())) {
    result.stop = StopReason::kInterrupted;
    return false;
  }
  return job.request.max_tokens < 0 ||
         result.tokens.size() < static_cast<std::size_t>(job.request.max_tokens);
}

void SchedulerImpl::Draw(Job& job, std::span<const float> logits) {
  RequestResult& result = job.result;
  const std::int32_t token = DrawAllowed(job, logits);
  if (token < 0) return;
  job.drawn = token;
  if (result.first_token_ms == 0.0) {
    result.first_token_ms =
        std::chrono::duration<double, std::milli>(Clock::now() - job.submitted).count();
  }
  if (engine_.IsEndOfGeneration(token)) {
    result.stop = StopReason::kEndOfText;
    return;
  }
  result.tokens.push_back(token);
  job.tokens.push_back(token);
}

// The samplers see the logits of the tokens that are allowed.
std::int32_t SchedulerImpl::DrawAllowed(Job& job, std::span<const float> logits) {
  TokenConstraint* const constraint = job.request.constraint.get();
  if (constraint == nullptr) return job.sampler.Sample(logits, job.tokens);
  allowed_.assign(logits.begin(), logits.end());
  if (constraint->complete()) {
    job.result.stop = StopReason::kEndOfText;
    return -1;
  }
  if (constraint->Apply(allowed_)) {
    const std::int32_t token = job.sampler.Sample(allowed_, job.tokens);
    if (constraint->Take(token)) return token;
  }
  job.result.stop = StopReason::kInterrupted;
  job.result.status = {StatusCode::kUnsupported,
                       "no token of the vocabulary goes on with a text that is allowed"};
  return -1;
}

Result<bool> SchedulerImpl::MakeContext(Job& job) {
  if (static_cast<Position>(job.tokens.size()) <= engine_.context()) return true;
  if (job.request.max_tokens < 0 || engine_.context() < 4) return false;
  const Status shifted = Shift(job);
  if (shifted.code() == StatusCode::kUnsupported) return false;
  KVCACHE_RETURN_IF_ERROR(shifted);
  return true;
}

Status SchedulerImpl::Shift(Job& job) {
  TakeCaptures(job);
  Keep(job);
  ClosePrefix(job);
  const Position keep = job.tokens.front() == engine_.tokenizer().bos() ? 1 : 0;
  const Position dropped = (job.length - keep) / 2;
  Cache& cache = engine_.cache();
  while (cache.FreeCells() < job.length && prefixes_->Evict(job.length) >= 0) {
  }
  if (cache.CheckRemove(job.sequence, keep, keep + dropped).code() == StatusCode::kCacheFull) {
    EvictWindows(job);
  }
  KVCACHE_RETURN_IF_ERROR(cache.CheckRemove(job.sequence, keep, keep + dropped));
  KVCACHE_RETURN_IF_ERROR(cache.Remove(job.sequence, keep, keep + dropped));
  if (engine_.states() != nullptr)
    engine_.states()->Forget(job.sequence);  // positions have changed
  job.tokens.erase(job.tokens.begin() + keep, job.tokens.begin() + keep + dropped);
  ++job.result.shifts;
  const Position length = job.length - dropped;
  KVCACHE_ASSIGN_OR_RETURN(const Position kept, cache.PrepareRestore(job.sequence, length));
  KVCACHE_RETURN_IF_ERROR(cache.Remove(job.sequence, kept, kEndOfSequence));
  job.length = kept;
  job.in_prompt = job.pending() > 1;
  return Status::Ok();
}

// Each sequence of the pass goes back to what it had before. Its request tries again, from what the
// prefixes still have, and fails the second time at the same place.
void SchedulerImpl::PassFailed(const Status& status) {
  for (std::size_t i = live_.size(); i-- > 0;) {
    Job& job = *live_[i];
    if (std::exchange(job.chunk, 0) == 0) continue;
    Cache& cache = engine_.cache();
    const auto kept = cache.PrepareRestore(job.sequence, job.length);
    job.length = kept.ok() ? std::min(*kept, job.length) : 0;
    if (!cache.Remove(job.sequence, job.length, kEndOfSequence).ok()) job.length = 0;
    if (++job.failures >= kMostFailures || job.shifted()) {
      FinishAt(i, StopReason::kInterrupted, status);
    } else {
      Requeue(i);
    }
  }
}

}  // namespace kvcache
