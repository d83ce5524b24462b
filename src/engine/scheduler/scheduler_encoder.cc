// Requests whose text an encoder reads. The output depends on all of the text, so there are no prefixes: the
// store has the output of exactly this text, or nothing.
#include <algorithm>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/scheduler/scheduler_impl.h"

namespace kvcache {

bool SchedulerImpl::StartWithEncoder(JobPtr job, SequenceId sequence) {
  job->sequence = sequence;
  job->in_prompt = true;
  job->length = 0;
  ReuseReport& reuse = job->result.reuse;
  const bool first = !std::exchange(job->started, true);
  if (first) {
    reuse.computed = reuse.prompt;
  } else {
    reuse.recomputed += reuse.prompt + job->pending() - 1;
  }
  job->store = {.began = Clock::now(), .is_first = first};
  if (loader_ != nullptr) {
    job->store.load = loader_->Begin({.tokens = job->request.prompt,
                                      .salt = job->request.salt,
                                      .most = reuse.prompt,
                                      .computes_per_s = computes_per_s_});
  }
  live_.push_back(std::move(job));
  if (first) SayStarted(*live_.back());
  return true;
}

SchedulerImpl::Job* SchedulerImpl::NextToEncode() const {
  const auto waits = [&](const JobPtr& job) { return WaitsForEncoder(*job); };
  const auto next = std::find_if(live_.begin(), live_.end(), [&](const JobPtr& job) {
    return waits(job) && !job->store.is_loading();
  });
  if (next == live_.end()) return nullptr;
  const bool any_decodes = !std::all_of(live_.begin(), live_.end(), waits);
  return any_decodes && turn_ % 2 == 1 ? nullptr : next->get();
}

void SchedulerImpl::MeasureEncoder() {
  if (last_pass_seconds_ > 0.0) AddRate(encoding_->result.reuse.prompt / last_pass_seconds_);
}

void SchedulerImpl::ApplyOutput(Job& job, const StoreLoader::Fetched& fetched) {
  PrefixStore& store = *engine_.prefix_store();
  auto output = store.ImportOutput(fetched.payload.span(), job.request.prompt.size());
  Status status = output.ok() ? store.RestoreOutput(job.sequence, **output) : output.status();
  if (status.ok()) {
    job.store.has_output = true;
    AddStored(job, job.result.reuse.prompt, fetched.tier);
  }
  const bool is_wrong = !output.ok() && status.code() != StatusCode::kOutOfMemory;
  if (is_wrong) loader_->Discard(fetched.piece.id);
  CancelLoad(job);
  EndLoad(job, std::string(status.message()));  // empty if it was restored
}

void SchedulerImpl::SaveOutput(Job& job) {
  if (!engine_.has_encoder() || !job.store.saves || job.store.has_output) return;
  engine_.prefix_store()->SaveOutput(job.sequence, job.request.prompt, job.request.salt,
                                     job.store.known);
}

}  // namespace kvcache
