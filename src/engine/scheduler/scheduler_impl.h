// The implementation of Scheduler. It moves requests between its parts:
//
//   RequestQueue ─► JobPrefixes, StoreLoads ─► PassComposer ─► PassRunner ─► DraftRound, JobSampler ─► done
//     (waiting)       (what is restored)      (ComposedPass)   (logits)        (the next tokens)
//
// scheduler.cc has the requests' way in and out, scheduler_step.cc one pass, and scheduler_memory.cc what happens
// when memory runs out.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/scheduler/job.h"
#include "engine/scheduler/job_prefixes.h"
#include "engine/scheduler/job_starter.h"
#include "engine/scheduler/memory_budget.h"
#include "engine/scheduler/pass/composed_pass.h"
#include "engine/scheduler/pass/draft_proposals.h"
#include "engine/scheduler/pass/draft_round.h"
#include "engine/scheduler/pass/job_sampler.h"
#include "engine/scheduler/pass/pass_composer.h"
#include "engine/scheduler/pass/pass_results.h"
#include "engine/scheduler/pass/pass_runner.h"
#include "engine/scheduler/request_queue.h"
#include "engine/scheduler/store_loads.h"
#include "engine/scheduler/tower_runs.h"
#include "kvcache_engine/scheduler.h"

namespace kvcache {

class SchedulerImpl final : public Scheduler {
 public:
  SchedulerImpl(Engine& engine, const SchedulerOptions& options);
  ~SchedulerImpl() override;
  // Makes the prefix cache. Errors: its.
  Status Open();

  Result<RequestId> Submit(ScheduledRequest request) override {
    return queue_.Submit(std::move(request));
  }
  void Cancel(RequestId request) override { queue_.Cancel(request); }
  Result<bool> Step() override;
  Status Run(const std::atomic<bool>& stop) override;
  void Wake() override { queue_.Wake(); }
  std::int64_t SetBudget(std::int64_t bytes) override;
  Result<PrefixMatch> Probe(std::span<const std::int32_t> prompt,
                            std::uint64_t salt) const override {
    return prefixes_.Probe(prompt, salt, live_);
  }
  Engine& engine() override { return engine_; }
  PrefixCache& prefixes() override { return prefixes_.cache(); }
  const PrefixCache& prefixes() const override { return prefixes_.cache(); }
  std::vector<RequestState> Requests() const override;
  double Now() const override { return prefixes_.Now(); }
  SchedulerStats Stats() const override;
  std::size_t live() const override { return live_.size(); }
  std::size_t waiting() const override { return queue_.unfinished() - live_.size(); }

 private:
  // ---- In and out (scheduler.cc).
  // Ends the requests that were cancelled.
  void EndCancelled(std::span<const RequestId> cancelled);
  // Gives waiting requests sequences, as far as there are any.
  void Admit();
  // Keeps what the request evaluated as a prefix, and gives its sequence back.
  JobPtr LeaveSequence(std::size_t index);
  void Finish(Job& job, StopReason stop, Status status = Status::Ok());
  void FinishAt(std::size_t index, StopReason stop, Status status = Status::Ok());
  void Publish();

  // ---- One pass (scheduler_step.cc).
  void RunStep();
  // Ends interrupted requests that wait or are in their prompts.
  void EndInterrupted();
  // Shifts full contexts, or ends their requests.
  void MakeContexts();
  // Runs the tower for pictures of prompts.
  void RunTower();
  // Runs the composed pass.
  void RunPass();
  // Sends the sequences of a failed pass back to the tokens before it.
  void PassFailed(const Status& status);
  void LearnFromPass();
  void AfterPass();

  // ---- Memory (scheduler_memory.cc).
  // Makes room for the pass: lets prefixes go, then parks requests. Returns whether anything is left in it.
  bool EnsureCapacity();
  // Composes a pass of the only request that has room. Returns false if the request has ended.
  bool ComposeAlone();
  // Begins the only request again, without a prefix and with all memory. Returns false if that does not
  // help: without EngineOptions::releases_memory, or a second time. The request has ended then.
  bool RestartAlone();
  // Brings what the cache takes to the budget after a step: prefixes go, then requests are parked.
  void KeepToBudget();
  // Keeps the prefixes that may go to host memory, which no pool bounds, to a few contexts.
  void LimitHostMemory();
  // Parks the request, or ends it if it cannot continue later.
  void ParkOrEnd(std::size_t index);
  // Ends the request's turn without an end: it continues later, from what the prefixes keep.
  void Requeue(std::size_t index);

  Engine& engine_;
  const SchedulerOptions options_;
  SchedulerStats stats_;
  RequestQueue queue_;
  JobPrefixes prefixes_;
  PassRunner runner_;
  MemoryBudget memory_;
  StoreLoads loads_;
  TowerRuns towers_;
  PassComposer composer_;
  ComposedPass pass_;
  JobSampler sampler_;
  DraftProposals proposals_;
  JobStarter starter_;
  DraftRound round_;
  PassResults results_;
  std::vector<JobPtr> live_;  // in order of their start
  bool starved_ = false;      // a request was parked since the last one left
  mutable std::mutex published_mutex_;
  SchedulerStats published_;  // stats_ after the last step; guarded by published_mutex_
};

}  // namespace kvcache
