// Drafts of requests side by side: who gets how many, and which of them stay.
//
// The passes of requests with drafts are rounds of one transaction: it has the sequences with drafts and
// no other, so that prompts in the same pass are not concerned. A request's samples are drawn as without
// drafts, from rows with the same bits, so its text is the same.
#include <algorithm>
#include <new>
#include <utility>

#include "engine/check_logits.h"
#include "engine/engine_impl.h"
#include "engine/prefix_drafter.h"
#include "engine/scheduler_impl.h"

namespace kvcache {
namespace {

// While prompts wait, drafts take this part of a step at most.
constexpr std::size_t kPartOfStepBesidePrompts = 8;
constexpr int kRefresh = 64;  // passes between two without drafts, whose time changes as well

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void SchedulerImpl::GiveDrafter(Job& job) {
  if (!options_.look_up_drafts || job.drafts != nullptr || job.request.draft_tokens == 0) return;
  try {
    job.drafts = std::make_unique<JobDrafts>(
        JobDrafts{.drafter = MakePrefixDrafter(*prefixes_, job.request.salt, rates_of_lookup_),
                  .fixed = job.request.draft_tokens,
                  .looks_up = true});
  } catch (const std::bad_alloc&) {
    // It has no drafts.
  }
}

// Drafts end before lengths at which the prefix cache wants a state, so that it gets the states that it
// would get without drafts.
Position SchedulerImpl::MostDrafts(const Job& job) const {
  if (job.drafts == nullptr || job.drafts->drafter == nullptr || job.drafts->fixed == 0) return 0;
  if (job.in_prompt || job.failures > 0 || job.pending() != 1) return 0;
  const auto generated = static_cast<Position>(job.result.tokens.size());
  Position most = std::min<Position>(DraftRates::kMost, engine_.context() - job.length - 1);
  if (job.request.max_tokens >= 0) most = std::min(most, job.request.max_tokens - generated - 1);
  const Position next = job.length + 1;
  for (const Position at : job.captures.lengths()) {
    if (at > job.length) most = std::min(most, at - next);
  }
  if (!divisible_) {
    const Position bound = options_.recompute_bound;
    most = std::min(most, (next + bound - 1) / bound * bound - next);
  }
  return std::max<Position>(most, 0);
}

void SchedulerImpl::ProposeDrafts() {
  DropDrafts();
  if (!rounds_work_ || engine_.has_encoder() ||
      std::none_of(live_.begin(), live_.end(),
                   [](const JobPtr& job) { return job->drafts != nullptr; })) {
    return;
  }
  std::size_t decodes = 0;
  for (const JobPtr& job : live_) decodes += job->in_prompt ? 0 : 1;
  const bool any_prompt = decodes < live_.size();
  const auto step = static_cast<std::size_t>(step_tokens_);
  if (decodes == 0 || decodes + (any_prompt ? std::max<std::size_t>(1, step / 8) : 0) >= step) {
    return;
  }
  std::size_t left = step - decodes;
  if (any_prompt) left = std::min(left, step / kPartOfStepBesidePrompts);
  try {
    PlanDrafts(static_cast<int>(decodes), static_cast<int>(left));
  } catch (const std::bad_alloc&) {
    DropDrafts();
  }
}

void SchedulerImpl::PlanDrafts(int decodes, int left) {
  shares_.clear();
  const bool measures = costs_.known() && ++passes_with_drafts_ % kRefresh != 0;
  int rows = decodes;
  for (const JobPtr& job : live_) {
    const Position most = MostDrafts(*job);
    DraftShare share;
    if (most > 0) {
      share = {.rates = &job->drafts->drafter->depth().rates(), .most = most};
      if (job->drafts->fixed > 0) {
        const int drafts = std::min({job->drafts->fixed, static_cast<int>(most), left});
        left -= drafts;
        rows += drafts;
        share.most = 0;
        Propose(*job, drafts);
      }
    }
    shares_.push_back(share);
  }
  if (!measures) return;
  plan_.Share(shares_, rows, decodes, left, costs_);
  for (const DraftShare& share : shares_) left -= share.drafts;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const DraftShare& share = shares_[i];
    if (share.most < 1) continue;
    DraftRates& rates = live_[i]->drafts->drafter->depth().rates();
    int drafts = share.drafts;
    if (drafts > 0) {
      rates.Pay();
    } else {
      drafts = std::min({rates.TryAgain(), share.most, left});
      left -= drafts;
    }
    if (drafts > 0) Propose(*live_[i], drafts);
  }
}

// A request goes on without a drafter that fails.
void SchedulerImpl::Propose(Job& job, int most) {
  JobDrafts& drafts = *job.drafts;
  const Clock::time_point start = Clock::now();
  Status status;
  try {
    status = AskDrafter(job, most);
  } catch (const std::bad_alloc&) {
    status = {StatusCode::kOutOfMemory, "no memory for the drafts of a request"};
  }
  if (!status.ok()) {
    drafts.tokens.clear();
    drafts.drafter.reset();
    job.result.speculation.error = std::move(status);
    return;
  }
  if (drafts.tokens.size() > static_cast<std::size_t>(most)) {
    drafts.tokens.resize(static_cast<std::size_t>(most));
  }
  const auto known = [&](std::int32_t token) {
    return token >= 0 && token < engine_.info().embedding_rows;
  };
  drafts.tokens.erase(std::find_if_not(drafts.tokens.begin(), drafts.tokens.end(), known),
                      drafts.tokens.end());
  drafts.drafter->depth().rates().CountProposal(static_cast<int>(drafts.tokens.size()),
                                                SecondsSince(start));
}

Status SchedulerImpl::AskDrafter(Job& job, int most) {
  JobDrafts& drafts = *job.drafts;
  if (!std::exchange(drafts.begun, true) || drafts.shifts != job.result.shifts) {
    KVCACHE_RETURN_IF_ERROR(drafts.drafter->Begin(job.tokens));
    drafts.shifts = job.result.shifts;
    drafts.told = job.tokens.size();
  }
  for (; drafts.told < job.tokens.size(); ++drafts.told) {
    KVCACHE_RETURN_IF_ERROR(drafts.drafter->Add(job.tokens[drafts.told]));
  }
  return drafts.drafter->Propose(most, drafts.tokens);
}

bool SchedulerImpl::AnyDrafts() const {
  return std::any_of(live_.begin(), live_.end(),
                     [](const JobPtr& job) { return job->drafted > 0; });
}

void SchedulerImpl::DropDrafts() {
  for (const JobPtr& job : live_) {
    if (job->drafts != nullptr) job->drafts->tokens.clear();
  }
}

void SchedulerImpl::ComposeWithoutDrafts() {
  DropDrafts();
  Compose();
}

// Without room for a transaction the pass has no drafts.
void SchedulerImpl::BeginRound() {
  if (!AnyDrafts()) return;
  Position most = 0;
  members_.clear();
  Status status;
  try {
    for (const JobPtr& job : live_) {
      if (job->drafted == 0) continue;
      members_.push_back({job->sequence, job->length});
      most = std::max(most, job->chunk);
    }
    kept_.resize(members_.size());
    Cache* const caches[] = {&engine_.cache()};
    auto round = Transaction::Begin(caches, members_, {.max_tokens = most});
    if (round.ok()) {
      round_ = std::move(round).value();
      return;
    }
    status = round.status();
  } catch (const std::bad_alloc&) {
    status = {StatusCode::kOutOfMemory, "no memory for a round of drafts"};
  }
  if (status.code() == StatusCode::kUnsupported) rounds_work_ = false;
  ComposeWithoutDrafts();
}

// Returns whether the pass can be tried again without drafts: it has not begun.
bool SchedulerImpl::GiveUpRound(const Status& status) {
  if (!round_) return false;
  round_.reset();
  if (status.code() != StatusCode::kCacheFull && status.code() != StatusCode::kUnsupported) {
    return false;
  }
  ComposeWithoutDrafts();
  return true;
}

// Samples as without drafts, as long as the samples are the drafts.
void SchedulerImpl::Judge(Job& job, std::size_t row) {
  JobDrafts& drafts = *job.drafts;
  const auto vocabulary = static_cast<std::size_t>(engine_.vocabulary_size());
  drafts.goes_on = true;
  drafts.kept = 0;
  SpeculationReport& report = job.result.speculation;
  while (drafts.goes_on) {
    const auto place = static_cast<std::size_t>(drafts.kept);
    const auto logits = std::span(logits_).subspan((row + place) * vocabulary, vocabulary);
    Status finite = CheckLogits(engine_, logits, job.length + drafts.kept + 1);
    if (!finite.ok()) {
      job.sound = false;
      job.result.stop = StopReason::kInterrupted;
      job.result.status = std::move(finite);
      drafts.goes_on = false;
      break;
    }
    ++drafts.kept;
    drafts.goes_on = Sample(job, job.length + drafts.kept, logits);
    if (place == drafts.tokens.size() || drafts.tokens[place] != job.drawn) break;
    ++report.accepted;
  }
  const auto drafted = static_cast<int>(drafts.tokens.size());
  report.drafted += drafted;
  ++report.rounds;
  const int accepted = std::max<Position>(drafts.kept - 1, 0);
  drafts.drafter->depth().rates().Count(drafted, accepted);
  if (drafts.looks_up) rates_of_lookup_.Count(drafted, accepted);
}

// Draws the samples of all requests with drafts, and keeps the rows that they came from. If the cache
// fails to keep them, the requests compute them again: what was drawn stays drawn.
void SchedulerImpl::JudgeDrafts() {
  if (!round_) return;
  std::size_t row = 0;
  std::size_t member = 0;
  for (const JobPtr& job : live_) {
    if (!job->samples()) continue;
    if (job->drafted > 0) {
      Judge(*job, row);
      kept_[member++] = job->drafts->kept;
    }
    row += 1 + static_cast<std::size_t>(job->drafted);
  }
  const Clock::time_point start = Clock::now();
  const bool committed = round_->Commit(kept_).ok();
  round_.reset();
  const double seconds = SecondsSince(start);
  stats_.pass_seconds += seconds;
  last_pass_seconds_ += seconds;
  if (committed) return;
  for (const JobPtr& job : live_) {
    if (job->drafted > 0) job->drafts->kept = 0;
  }
}

// A window evicts when a pass or a transaction needs its cells.
void SchedulerImpl::EvictWindows(const Job& job) {
  Cache* const caches[] = {&engine_.cache()};
  const SequenceLength member[] = {{job.sequence, job.length}};
  for (Position most = job.length; most > 0; most /= 2) {
    if (Transaction::Begin(caches, member, {.max_tokens = most}).ok()) return;
  }
}

bool SchedulerImpl::EndOfRound(std::size_t index) {
  Job& job = *live_[index];
  if (job.sound) {
    TakeCaptures(job);
    const bool due = !divisible_ && job.length % options_.recompute_bound == 0;
    if (due && job.drafts->kept > 0) Keep(job);
  }
  if (!job.drafts->goes_on) {
    FinishAt(index, job.result.stop, job.result.status);
    return false;
  }
  job.in_prompt = job.pending() > 1;
  return true;
}

}  // namespace kvcache
