#include "engine/scheduler/pass/draft_proposals.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/errors.h"
#include "base/seconds_since.h"
#include "engine/drafts/draft_model.h"
#include "engine/drafts/prefix_drafter.h"
#include "engine/engine_impl.h"
#include "kvcache_engine/head_drafter.h"

namespace kvcache {
namespace {

using Clock = std::chrono::steady_clock;

// The request continues without its drafter, which has failed.
void LoseDrafter(Job& job, Status status) {
  job.drafts->proposed.clear();
  job.drafts->drafter.reset();
  job.result.speculation.error = std::move(status);
}

constexpr char kNoMemory[] = "no memory for the drafts of a request";

bool Wants(const JobPtr& job) {
  return job->drafts != nullptr && job->drafts->wanted > 0;
}

}  // namespace

void DraftProposals::GiveDrafter(Job& job) {
  const bool head = options_.use_engine_drafts && engine_.has_draft_head();
  // A draft model has no tower.
  const bool has_model = options_.use_engine_drafts && job.pictures == nullptr;
  DraftModel* const model = has_model ? engine_.draft_model() : nullptr;
  if (!head && model == nullptr && !options_.look_up_drafts) return;
  if (job.drafts != nullptr || job.request.draft_tokens == 0) return;
  try {
    auto drafts =
        std::make_unique<JobDrafts>(JobDrafts{.fixed = job.request.draft_tokens, .rates = &rates_});
    if (head || model != nullptr) {
      drafts->drafter = head ? *MakeHeadDrafter(engine_) : model->MakeDrafter(job.salt);
      drafts->drafter->rates() = rates_;
    } else {
      drafts->drafter = MakePrefixDrafter(prefixes_.cache(), job.salt, rates_);
    }
    job.drafts = std::move(drafts);
  } catch (const std::bad_alloc&) {
    // It has no drafts.
  }
}

// Drafts end before lengths at which the prefix cache wants a state, so that it gets the states that it
// would get without drafts.
Position DraftProposals::MaxDrafts(const Job& job) const {
  if (job.drafts == nullptr || job.drafts->drafter == nullptr || job.drafts->fixed == 0) return 0;
  if (job.request.constraint != nullptr) return 0;
  if (job.in_prompt || job.failures > 0 || job.pending() != 1) return 0;
  const auto generated = static_cast<Position>(job.result.tokens.size());
  Position max = std::min<Position>(DraftRates::kMax, engine_.context() - job.length - 1);
  if (job.request.max_tokens >= 0) max = std::min(max, job.request.max_tokens - generated - 1);
  const Position next = job.length + 1;
  for (const Position at : job.captures.lengths()) {
    if (at > job.length) max = std::min(max, at - next);
  }
  if (!prefixes_.divisible()) {
    const Position bound = options_.recompute_bound;
    max = std::min(max, (next + bound - 1) / bound * bound - next);
  }
  return std::max<Position>(max, 0);
}

void DraftProposals::Propose(std::span<const JobPtr> live, const PassComposer& composer) {
  Drop(live);
  if (engine_.has_encoder() || std::none_of(live.begin(), live.end(), [](const JobPtr& job) {
        return job->drafts != nullptr;
      })) {
    return;
  }
  std::size_t decodes = 0;
  std::size_t waiting = 0;  // tokens of prompts
  for (const JobPtr& job : live) {
    decodes += job->in_prompt ? 0 : 1;
    if (ReadsPrompt(engine_, *job)) waiting += static_cast<std::size_t>(job->pending());
  }
  const auto step = static_cast<std::size_t>(composer.max_tokens());
  const std::size_t for_prompts = waiting > 0 ? composer.PromptShare() : 0;
  if (decodes == 0 || decodes + for_prompts >= step) return;
  std::size_t left = step - decodes;
  if (waiting > 0) {
    left = std::min(left, for_prompts);  // drafts take no more than prompts get at least
  }
  try {
    const auto chunk = static_cast<std::size_t>(composer.ExpectedChunk());
    const std::size_t tokens = decodes + std::min({waiting, chunk, step - decodes});
    Plan(live, static_cast<int>(tokens), static_cast<int>(decodes), static_cast<int>(left));
    AskAll(live);
  } catch (const std::bad_alloc&) {
    Drop(live);
  }
}

void DraftProposals::Plan(std::span<const JobPtr> live, int tokens, int decodes, int left) {
  shares_.clear();
  for (const JobPtr& job : live) {
    const Position max = MaxDrafts(*job);
    DraftShare share;
    if (max > 0) {
      Drafter& drafter = *job->drafts->drafter;
      share = {.rates = &drafter.rates(), .batch = drafter.batch(), .max = max};
      if (job->drafts->fixed > 0) {
        const int drafts = std::min({job->drafts->fixed, static_cast<int>(max), left});
        left -= drafts;
        tokens += drafts;
        share.max = 0;
        job->drafts->wanted = drafts;
      }
    }
    shares_.push_back(share);
  }
  plan_.Share(shares_, tokens, decodes, left);
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    if (shares_[i].max > 0) live[i]->drafts->wanted = shares_[i].drafts;
  }
}

void DraftProposals::AskAll(std::span<const JobPtr> live) {
  for (const JobPtr& first : live) {
    if (!Wants(first)) continue;
    const Clock::time_point start = Clock::now();
    BatchDrafter* const batch = first->drafts->drafter->batch();
    asks_.clear();
    asking_.clear();
    if (batch == nullptr) {
      AddAsk(*first);
    } else {
      for (const JobPtr& job : live) {
        if (Wants(job) && job->drafts->drafter->batch() == batch) AddAsk(*job);
      }
    }
    if (!asks_.empty()) Ask(batch);
    for (std::size_t i = 0; i < asks_.size(); ++i) TakeDrafts(*asking_[i], asks_[i]);
    if (batch != nullptr || asks_.empty() || first->drafts->drafter == nullptr) continue;
    first->drafts->drafter->rates().CountProposal(static_cast<int>(first->drafts->proposed.size()),
                                                  SecondsSince(start));
  }
}

void DraftProposals::AddAsk(Job& job) {
  const int max = std::exchange(job.drafts->wanted, 0);
  Status status = Guarded(kNoMemory, [&] { return Tell(job); });
  if (!status.ok()) return LoseDrafter(job, std::move(status));
  asking_.push_back(&job);
  asks_.push_back(
      {.drafter = job.drafts->drafter.get(), .max = max, .drafts = &job.drafts->proposed});
}

Status DraftProposals::Tell(Job& job) {
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

void DraftProposals::Ask(BatchDrafter* batch) {
  try {
    if (batch != nullptr) return batch->Propose(asks_);
    DraftAsk& ask = asks_.front();
    ask.status = ask.drafter->Propose(ask.max, *ask.drafts);
  } catch (const std::bad_alloc&) {
    for (DraftAsk& ask : asks_) ask.status = OutOfMemory(kNoMemory);
  }
}

void DraftProposals::TakeDrafts(Job& job, DraftAsk& ask) const {
  if (!ask.status.ok()) return LoseDrafter(job, std::move(ask.status));
  std::vector<std::int32_t>& drafts = *ask.drafts;
  const std::int32_t tokens = engine_.info().embedding_rows;
  const auto max = std::min(drafts.size(), static_cast<std::size_t>(ask.max));
  const auto wrong = std::find_if(drafts.begin(), drafts.begin() + static_cast<std::ptrdiff_t>(max),
                                  [&](std::int32_t token) { return token < 0 || token >= tokens; });
  drafts.erase(wrong, drafts.end());
}

void DraftProposals::Drop(std::span<const JobPtr> live) {
  for (const JobPtr& job : live) {
    if (job->drafts == nullptr) continue;
    job->drafts->proposed.clear();
    job->drafts->wanted = 0;
  }
}

void DraftProposals::CountPass(int tokens, int prompt_tokens, double seconds) {
  if (prompt_tokens == 0 || prompt_tokens == tokens) {
    plan_.CountPass(tokens, seconds);
  } else {
    plan_.CountTime(seconds);
  }
}

}  // namespace kvcache
