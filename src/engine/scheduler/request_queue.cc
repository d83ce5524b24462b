#include "engine/scheduler/request_queue.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/scheduler/request_checks.h"

namespace kvcache {
namespace {

Result<JobPtr> MakeJob(const Engine& engine, ScheduledRequest request) {
  Sampler sampler(request.sampling);
  KVCACHE_ASSIGN_OR_RETURN(request.adapters, engine.NormalAdapters(request.adapters));
  const std::uint64_t salt = engine.SaltOf(request.salt, request.adapters);
  JobPtr job(new Job{.submitted = std::chrono::steady_clock::now(),
                     .request = std::move(request),
                     .salt = salt,
                     .sampler = std::move(sampler)});
  if (job->request.drafter != nullptr) {
    job->drafts.reset(new JobDrafts{.drafter = std::move(job->request.drafter),
                                    .fixed = job->request.draft_tokens});
  }
  if (engine.has_encoder()) {
    job->tokens = {engine.info().decoder_start};
  } else {
    job->tokens = job->request.prompt;
  }
  if (!job->request.pictures.empty()) {
    job->result.reuse.pictures = static_cast<std::int32_t>(job->request.pictures.size());
    job->pictures = std::make_unique<JobPictures>(std::move(job->request.pictures));
  }
  job->evaluates_last = job->request.evaluates_last;
  // A step of a request with few tokens allocates nothing.
  constexpr std::size_t kReserved = 1024;
  const auto max = static_cast<std::size_t>(std::max(job->request.max_tokens, 0));
  job->tokens.reserve(job->tokens.size() + std::min(max, kReserved));
  job->result.tokens.reserve(std::min(max, kReserved));
  job->result.reuse.prompt = static_cast<Position>(job->request.prompt.size());
  return job;
}

}  // namespace

Result<RequestId> RequestQueue::Submit(ScheduledRequest request) {
  KVCACHE_RETURN_IF_ERROR(CheckRequest(engine_, request, max_tokens_));
  KVCACHE_ASSIGN_OR_RETURN(JobPtr job, MakeJob(engine_, std::move(request)));
  const std::lock_guard lock(mutex_);
  job->id = RequestId{next_id_++};
  job->result.id = job->id;
  const RequestId id = job->id;
  // Cancel needs no memory then.
  if (cancelled_.capacity() <= unfinished_) cancelled_.reserve(2 * unfinished_ + 1);
  inbox_.push_back(std::move(job));
  ++unfinished_;
  wake_.notify_all();
  return id;
}

void RequestQueue::Cancel(RequestId request) {
  const std::lock_guard lock(mutex_);
  const bool is_new = std::find(cancelled_.begin(), cancelled_.end(), request) == cancelled_.end();
  if (is_new) cancelled_.push_back(request);
  wake_.notify_all();
}

void RequestQueue::Wake() {
  const std::lock_guard lock(mutex_);
  wake_.notify_all();
}

std::size_t RequestQueue::unfinished() const {
  const std::lock_guard lock(mutex_);
  return unfinished_;
}

void RequestQueue::Wait(const std::atomic<bool>& stop) {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] {
    return !inbox_.empty() || !cancelled_.empty() || stop.load(std::memory_order_relaxed);
  });
}

std::vector<RequestId> RequestQueue::Update(std::size_t live) {
  std::vector<RequestId> cancelled;
  {
    const std::lock_guard lock(mutex_);
    try {
      cancelled = cancelled_;
      cancelled_.clear();
      waiting_.reserve(waiting_.size() + live + inbox_.size());
      std::move(inbox_.begin(), inbox_.end(), std::back_inserter(waiting_));
      inbox_.clear();
    } catch (const std::bad_alloc&) {
      // They wait for the next step.
    }
  }
  std::sort(waiting_.begin(), waiting_.end(),
            [](const JobPtr& a, const JobPtr& b) { return a->id < b->id; });
  return cancelled;
}

JobPtr RequestQueue::Take(RequestId request) {
  const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                               [&](const JobPtr& job) { return job->id == request; });
  if (at == waiting_.end()) return nullptr;
  return Take(static_cast<std::size_t>(at - waiting_.begin()));
}

JobPtr RequestQueue::Take(std::size_t index) {
  JobPtr job = std::move(waiting_[index]);
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
  return job;
}

void RequestQueue::PutBack(JobPtr job) {
  waiting_.insert(waiting_.begin(), std::move(job));
}

void RequestQueue::CountEnd() {
  const std::lock_guard lock(mutex_);
  --unfinished_;
}

std::size_t RequestQueue::size() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size() + inbox_.size();
}

}  // namespace kvcache
