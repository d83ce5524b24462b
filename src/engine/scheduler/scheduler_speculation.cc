// Drafts of requests side by side: who gets how many, and which of them stay.
//
// The passes of requests with drafts are rounds of one transaction: it has the sequences with drafts and
// no other, so that prompts in the same pass are not concerned. A request's samples are drawn as without
// drafts, from rows with the same bits, so its text is the same.
#include <algorithm>
#include <new>
#include <utility>

#include "base/seconds_since.h"
#include "engine/drafts/draft_model.h"
#include "engine/drafts/prefix_drafter.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/sequence_states.h"
#include "engine/request/check_logits.h"
#include "engine/scheduler/scheduler_impl.h"
#include "kvcache_engine/head_drafter.h"
#include "speculation/judge_drafts.h"

namespace kvcache {
namespace {

constexpr int kOneMore = 20;  // passes between two with one draft more than seems best
constexpr int kRefresh = 64;  // passes between two without drafts, whose time changes as well

}  // namespace

void SchedulerImpl::GiveDrafter(Job& job) {
  const bool head = options_.use_engine_drafts && engine_.has_draft_head();
  DraftModel* const model = options_.use_engine_drafts ? engine_.draft_model() : nullptr;
  if (!head && model == nullptr && !options_.look_up_drafts) return;
  if (job.drafts != nullptr || job.request.draft_tokens == 0) return;
  try {
    auto drafts = std::make_unique<JobDrafts>(JobDrafts{.fixed = job.request.draft_tokens,
                                                        .branches = job.request.draft_branches,
                                                        .rates = &rates_of_own_});
    if (head || model != nullptr) {
      drafts->drafter = head ? *MakeHeadDrafter(engine_) : model->MakeDrafter(job.request.salt);
      drafts->drafter->depth().rates() = rates_of_own_;
    } else {
      drafts->drafter = MakePrefixDrafter(*prefixes_, job.request.salt, rates_of_own_);
    }
    job.drafts = std::move(drafts);
  } catch (const std::bad_alloc&) {
    // It has no drafts.
  }
}

// Drafts end before lengths at which the prefix cache wants a state, so that it gets the states that it
// would get without drafts.
Position SchedulerImpl::MostDrafts(const Job& job) const {
  if (job.drafts == nullptr || job.drafts->drafter == nullptr || job.drafts->fixed == 0) return 0;
  if (job.request.constraint != nullptr) return 0;
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
  std::size_t waiting = 0;  // tokens of prompts
  for (const JobPtr& job : live_) {
    decodes += job->in_prompt ? 0 : 1;
    if (ReadsPrompt(*job)) waiting += static_cast<std::size_t>(job->pending());
  }
  const auto step = static_cast<std::size_t>(step_tokens_);
  const std::size_t for_prompts = waiting > 0 ? PartForPrompts() : 0;
  if (decodes == 0 || decodes + for_prompts >= step) return;
  std::size_t left = step - decodes;
  if (waiting > 0)
    left = std::min(left, for_prompts);  // drafts take no more than prompts get at least
  try {
    const std::size_t chunk = static_cast<std::size_t>(pace_.last_tokens());
    const std::size_t tokens = decodes + std::min({waiting, chunk, step - decodes});
    PlanDrafts(static_cast<int>(tokens), static_cast<int>(decodes), static_cast<int>(left));
    AskDrafters();
  } catch (const std::bad_alloc&) {
    DropDrafts();
  }
}

void SchedulerImpl::PlanDrafts(int tokens, int decodes, int left) {
  shares_.clear();
  const bool measures = costs_.known() && ++passes_with_drafts_ % kRefresh != 0;
  for (const JobPtr& job : live_) {
    const Position most = MostDrafts(*job);
    DraftShare share;
    if (most > 0) {
      Drafter& drafter = *job->drafts->drafter;
      share = {.rates = &drafter.depth().rates(), .batch = drafter.batch(), .most = most};
      if (job->drafts->fixed > 0) {
        const int drafts = std::min({job->drafts->fixed, static_cast<int>(most), left});
        left -= drafts;
        tokens += drafts;
        share.most = 0;
        job->drafts->wanted = drafts;
      }
    }
    shares_.push_back(share);
  }
  if (!measures) return;
  plan_.Share(shares_, tokens, decodes, left, costs_);
  for (const DraftShare& share : shares_) left -= share.drafts;
  // Now and then one more, so that a rate or a cost that was measured badly is measured again.
  const bool one_more = passes_with_drafts_ % kOneMore == 0;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const DraftShare& share = shares_[i];
    if (share.most < 1) continue;
    const bool more = one_more && share.drafts > 0 && share.drafts < share.most && left > 0;
    left -= more ? 1 : 0;
    live_[i]->drafts->wanted = share.drafts + (more ? 1 : 0);
  }
}

void SchedulerImpl::AskDrafters() {
  const auto wants = [](const JobPtr& job) {
    return job->drafts != nullptr && job->drafts->wanted > 0;
  };
  for (const JobPtr& first : live_) {
    if (!wants(first)) continue;
    const Clock::time_point start = Clock::now();
    BatchDrafter* const batch = first->drafts->drafter->batch();
    asks_.clear();
    asking_.clear();
    if (batch == nullptr) {
      AddAsk(*first);
    } else {
      for (const JobPtr& job : live_) {
        if (wants(job) && job->drafts->drafter->batch() == batch) AddAsk(*job);
      }
    }
    if (!asks_.empty()) Ask(batch);
    for (std::size_t i = 0; i < asks_.size(); ++i) TakeDrafts(*asking_[i], asks_[i]);
    if (batch != nullptr || asks_.empty() || first->drafts->drafter == nullptr) continue;
    first->drafts->drafter->depth().rates().CountProposal(
        static_cast<int>(first->drafts->tree.size()), SecondsSince(start));
  }
}

void SchedulerImpl::AddAsk(Job& job) {
  const int most = std::exchange(job.drafts->wanted, 0);
  Status status;
  try {
    status = TellDrafter(job);
  } catch (const std::bad_alloc&) {
    status = {StatusCode::kOutOfMemory, "no memory for the drafts of a request"};
  }
  if (!status.ok()) return LoseDrafter(job, std::move(status));
  asking_.push_back(&job);
  asks_.push_back({.drafter = job.drafts->drafter.get(),
                   .most = most,
                   .branches = job.drafts->branches,
                   .tree = &job.drafts->tree});
}

Status SchedulerImpl::TellDrafter(Job& job) {
  JobDrafts& drafts = *job.drafts;
  drafts.drafter->SetSequence(job.sequence);
  if (!std::exchange(drafts.begun, true) || drafts.shifts != job.result.shifts) {
    KVCACHE_RETURN_IF_ERROR(drafts.drafter->Begin(job.tokens));
    drafts.shifts = job.result.shifts;
    drafts.told = job.tokens.size();
  }
  for (; drafts.told < job.tokens.size(); ++drafts.told) {
    KVCACHE_RETURN_IF_ERROR(drafts.drafter->Add(job.tokens[drafts.told]));
  }
  return Status::Ok();
}

void SchedulerImpl::Ask(BatchDrafter* batch) {
  try {
    if (batch != nullptr) return batch->Propose(asks_);
    DraftAsk& ask = asks_.front();
    ask.status = ask.drafter->ProposeTree(ask.most, ask.branches, *ask.tree);
  } catch (const std::bad_alloc&) {
    for (DraftAsk& ask : asks_) {
      ask.status = {StatusCode::kOutOfMemory, "no memory for the drafts of a request"};
    }
  }
}

void SchedulerImpl::TakeDrafts(Job& job, DraftAsk& ask) {
  if (!ask.status.ok()) return LoseDrafter(job, std::move(ask.status));
  ask.tree->KeepValid(static_cast<std::size_t>(ask.most), engine_.info().embedding_rows);
}

void SchedulerImpl::LoseDrafter(Job& job, Status status) {
  job.drafts->tree.Clear();
  job.drafts->drafter.reset();
  job.result.speculation.error = std::move(status);
}

bool SchedulerImpl::AnyDrafts() const {
  return std::any_of(live_.begin(), live_.end(),
                     [](const JobPtr& job) { return job->drafted > 0; });
}

void SchedulerImpl::DropDrafts() {
  for (const JobPtr& job : live_) {
    if (job->drafts == nullptr) continue;
    job->drafts->tree.Clear();
    job->drafts->wanted = 0;
  }
}

// The pass keeps its other tokens: there is room for them, and for no more.
void SchedulerImpl::TakeDraftsOut() {
  DropDrafts();
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  parents_.clear();
  for (const JobPtr& job : live_) {
    if (job->chunk > 0) AddToBatch(*job, job->chunk - std::exchange(job->drafted, 0));
  }
}

// A pass of trees is one of drafts only: the cache keeps of each sequence what is named after it. Prompts
// are too long for that. Alternatives lie far from each other in the pool, so their memory has no good
// bound: within a budget of bytes there are chains only.
void SchedulerImpl::ComposeTrees() {
  const auto has_tree = [](const JobPtr& job) {
    return job->drafted > 0 && !job->drafts->tree.IsChain();
  };
  if (std::none_of(live_.begin(), live_.end(), has_tree)) return;
  const bool prompts = std::any_of(live_.begin(), live_.end(),
                                   [](const JobPtr& job) { return job->chunk - job->drafted > 1; });
  try {
    if (!prompts && trees_work_ && !governor_.limits()) {
      parents_.resize(tokens_.size());
      for (const JobPtr& job : live_) {
        if (job->chunk == 0) continue;
        parents_[job->row] = -1;
        for (Position i = 0; i < job->drafted; ++i) {
          const auto at = static_cast<std::size_t>(i);
          parents_[job->row + 1 + at] =
              static_cast<std::int32_t>(job->row) + 1 + job->drafts->tree.parents[at];
        }
      }
      return;
    }
  } catch (const std::bad_alloc&) {
    parents_.clear();
  }
  for (const JobPtr& job : live_) {
    if (job->drafts != nullptr) job->drafts->tree.KeepFirstPath();
  }
  Compose();
}

// Without room for a transaction the pass has no drafts.
void SchedulerImpl::BeginRound() {
  if (!AnyDrafts() || !parents_.empty()) return;
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
  TakeDraftsOut();
}

// Returns whether the pass can be tried again without drafts: it has not begun.
bool SchedulerImpl::GiveUpRound(const Status& status) {
  if (!round_ && parents_.empty()) return false;
  if (!parents_.empty()) engine_.cache().EndPass();
  round_.reset();
  if (status.code() != StatusCode::kCacheFull && status.code() != StatusCode::kUnsupported) {
    return false;
  }
  TakeDraftsOut();
  return true;
}

// Samples as without drafts, as long as the samples are the drafts.
void SchedulerImpl::Judge(Job& job) {
  JobDrafts& drafts = *job.drafts;
  const auto vocabulary = static_cast<std::size_t>(engine_.vocabulary_size());
  drafts.kept = 0;
  const Verdict verdict = JudgeDrafts(drafts.tree, [&](std::int32_t draft) -> DrawnToken {
    const std::size_t row = job.logits_row + static_cast<std::size_t>(draft + 1);
    const auto logits = std::span(logits_).subspan(row * vocabulary, vocabulary);
    Status finite = CheckLogits(engine_, logits, job.length + drafts.kept + 1);
    if (!finite.ok()) {
      job.sound = false;
      job.result.stop = StopReason::kInterrupted;
      job.result.status = std::move(finite);
      return {.goes_on = false};
    }
    ++drafts.kept;
    const bool goes_on = Sample(job, job.length + drafts.kept, logits);
    return {.token = job.drawn, .goes_on = goes_on};
  });
  drafts.last = verdict.last;
  drafts.goes_on = verdict.goes_on;
  const auto drafted = static_cast<int>(drafts.tree.size());
  SpeculationReport& report = job.result.speculation;
  report.drafted += drafted;
  report.accepted += verdict.accepted;
  ++report.rounds;
  const int right = std::max<Position>(drafts.kept - 1, 0);
  drafts.drafter->depth().rates().Count(drafted, right);
  if (drafts.rates != nullptr) drafts.rates->Count(drafted, right);
}

// Draws the samples of all requests with drafts, and keeps the rows that they came from. If the cache
// fails to keep them, the requests compute them again: what was drawn stays drawn.
void SchedulerImpl::JudgeRound() {
  if (!AnyDrafts()) return;
  for (const JobPtr& job : live_) {
    if (job->drafted > 0) Judge(*job);
  }
  const Clock::time_point start = Clock::now();
  const bool kept = KeepJudged().ok();
  round_.reset();
  const double seconds = SecondsSince(start);
  stats_.pass_seconds += seconds;
  last_pass_seconds_ += seconds;
  if (kept) return;
  for (const JobPtr& job : live_) {
    if (job->drafted > 0) {
      job->drafts->kept = 0;
    } else if (!parents_.empty()) {
      job->chunk = 0;  // its token is in the next pass
    }
  }
  if (!parents_.empty()) trees_work_ = false;
}

Status SchedulerImpl::KeepJudged() {
  if (round_) {
    std::size_t member = 0;
    for (const JobPtr& job : live_) {
      if (job->drafted > 0) kept_[member++] = job->drafts->kept;
    }
    return round_->Commit(kept_);
  }
  try {
    last_.clear();
    for (const JobPtr& job : live_) {
      if (job->chunk == 0 || (job->drafted > 0 && job->drafts->kept == 0)) continue;
      const std::int32_t draft = job->drafted > 0 ? job->drafts->last : -1;
      last_.push_back(static_cast<std::int32_t>(job->row) + 1 + draft);
    }
  } catch (const std::bad_alloc&) {
    engine_.cache().EndPass();
    return {StatusCode::kOutOfMemory, "no memory for a pass of trees"};
  }
  Status status = engine_.cache().AcceptDrafts(last_);
  if (!status.ok()) {
    engine_.cache().EndPass();
  } else if (engine_.states() != nullptr) {
    engine_.states()->Accept(last_, parents_);
  }
  return status;
}

// A window evicts only when a pass or a transaction needs its cells, so after a round it may hold more than
// it retains, and a shift then finds no free cells. A transaction that needs as many as possible, and does
// nothing, frees them.
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
