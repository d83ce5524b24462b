#include "engine/scheduler/pass/draft_round.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/seconds_since.h"
#include "engine/request/check_logits.h"
#include "speculation/verify_drafts.h"

namespace kvcache {
namespace {

// Samples as without drafts, as long as the samples are the drafts.
void VerifyRows(PassRows& of, const PassRunner& runner, JobSampler& sampler, const Engine& engine) {
  Job& job = *of.job;
  JobDrafts& drafts = *job.drafts;
  of.kept = 0;
  const VerifiedDrafts verified = VerifyDrafts(drafts.proposed, [&](std::size_t row) -> DrawnToken {
    const std::span<const float> logits = runner.Logits(of, row);
    Status finite = CheckLogits(engine, logits, job.length + of.kept + 1);
    if (!finite.ok()) {
      job.can_keep = false;
      job.result.stop = StopReason::kInterrupted;
      job.result.status = std::move(finite);
      return {.continues = false};
    }
    ++of.kept;
    return sampler.Sample(job, job.length + of.kept, logits);
  });
  of.continues = verified.continues;
  const auto drafted = static_cast<int>(drafts.proposed.size());
  SpeculationReport& report = job.result.speculation;
  report.drafted += drafted;
  report.accepted += verified.accepted;
  ++report.rounds;
  const int right = std::max<Position>(of.kept - 1, 0);
  drafts.drafter->rates().Count(drafted, right);
  if (drafts.rates != nullptr) drafts.rates->Count(drafted, right);
}

}  // namespace

void DraftRound::Begin(ComposedPass& pass) {
  if (!pass.has_drafts()) return;
  const Status status = Open(pass);
  if (status.ok()) return;
  if (status.code() == StatusCode::kUnsupported) works_ = false;
  pass.RemoveDrafts();
}

Status DraftRound::Open(const ComposedPass& pass) {
  Position max = 0;
  members_.clear();
  return Guarded("no memory for a round of drafts", [&]() -> Status {
    for (const PassRows& of : pass.rows) {
      if (of.drafted == 0) continue;
      members_.push_back({of.job->sequence, of.job->length});
      max = std::max(max, of.tokens);
    }
    kept_.resize(members_.size());
    Cache* const caches[] = {&engine_.cache()};
    KVCACHE_ASSIGN_OR_RETURN(transaction_,
                             Transaction::Begin(caches, members_, {.max_tokens = max}));
    return Status::Ok();
  });
}

bool DraftRound::GiveUp(const Status& status, ComposedPass& pass) {
  if (!transaction_) return false;
  transaction_.reset();
  if (status.code() != StatusCode::kCacheFull && status.code() != StatusCode::kUnsupported) {
    return false;
  }
  pass.RemoveDrafts();
  return true;
}

void DraftRound::Verify(ComposedPass& pass, const PassRunner& runner, JobSampler& sampler) {
  for (PassRows& of : pass.rows) {
    if (of.drafted > 0) VerifyRows(of, runner, sampler, engine_);
  }
}

void DraftRound::Keep(ComposedPass& pass, PassRunner& runner) {
  if (!pass.has_drafts()) return;
  const auto start = std::chrono::steady_clock::now();
  const bool kept = Commit(pass).ok();
  transaction_.reset();
  runner.AddSecondsOfCommit(SecondsSince(start));
  if (kept) return;
  for (PassRows& of : pass.rows) of.kept = 0;
}

Status DraftRound::Commit(const ComposedPass& pass) {
  std::size_t member = 0;
  for (const PassRows& of : pass.rows) {
    if (of.drafted > 0) kept_[member++] = of.kept;
  }
  return transaction_->Commit(kept_);
}

}  // namespace kvcache
