// The implementation of Scheduler: scheduler.cc has the requests' way in and out, scheduler_step.cc
// one pass, and scheduler_memory.cc what happens when cells run out.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/memory_governor.h"
#include "engine/snapshot_states.h"
#include "kvcache_engine/scheduler.h"

namespace kvcache {

class SchedulerImpl final : public Scheduler {
 public:
  SchedulerImpl(Engine& engine, const SchedulerOptions& options, bool divisible);
  ~SchedulerImpl() override;
  SchedulerImpl(const SchedulerImpl&) = delete;
  SchedulerImpl& operator=(const SchedulerImpl&) = delete;
  // Makes the prefix cache. Errors: its.
  Status Open();

  Result<RequestId> Submit(ScheduledRequest request) override;
  void Cancel(RequestId request) override;
  Result<bool> Step() override;
  Status Run(const std::atomic<bool>& stop) override;
  void Wake() override;
  Result<PrefixMatch> Probe(std::span<const std::int32_t> prompt,
                            std::uint64_t salt) const override;
  PrefixCache& prefixes() override { return *prefixes_; }
  std::size_t live() const override { return live_.size(); }
  std::size_t waiting() const override;

 private:
  using Clock = std::chrono::steady_clock;

  // A request, with or without a sequence.
  struct Job {
    RequestId id{};
    ScheduledRequest request;
    Sampler sampler;
    Clock::time_point submitted;
    RequestResult result;
    std::vector<std::int32_t> tokens;  // prompt and generated
    Position length = 0;               // of them evaluated, while it has a sequence
    SequenceId sequence{};
    PrefixRequest prefix{};
    bool known = false;     // `prefix` is open; a shifted context is no prefix any more
    bool captures = false;  // some are scheduled
    std::vector<Position> capture_lengths{};
    bool in_prompt = true;  // has not sampled since it got its sequence
    int failures = 0;       // passes that failed
    std::size_t row = 0;    // of its last token in the pass
    Position chunk = 0;     // tokens of it in the pass

    Position pending() const { return static_cast<Position>(tokens.size()) - length; }
  };
  using JobPtr = std::unique_ptr<Job>;

  double Now() const;

  // ---- In and out (scheduler.cc).
  void TakeInbox();
  void Admit();
  // Returns whether a live job computes a long part of this one's prompt that it could reuse soon.
  bool ShouldWaitForOthers(const Job& job) const;
  // Gives the job a sequence and what is known of its tokens. Returns false if there is no memory.
  bool Start(JobPtr job, SequenceId sequence);
  void Restore(Job& job, PrefixPlan& plan);
  void ScheduleCaptures(Job& job, std::span<const Position> lengths);
  // Lets the trie have everything that the job evaluated, and gives its sequence back.
  void LeaveSequence(Job& job);
  void TakeCaptures(Job& job);
  void Keep(Job& job);
  void Finish(Job& job, StopReason stop, Status status = Status::Ok());
  void FinishAt(std::size_t index, StopReason stop, Status status = Status::Ok());
  std::optional<SequenceId> FreeSequence() const;

  // ---- One pass (scheduler_step.cc).
  void Compose();
  Position LimitCaptures(const Job& job, Position count, int& captures) const;
  void AddToBatch(Job& job, Position count);
  Status RunPass();
  void AfterPass();
  // Draws a token of the job. Returns whether it goes on.
  bool Sample(Job& job, std::span<const float> logits);
  bool MakeContext(Job& job);
  Status Shift(Job& job);
  void PassFailed(const Status& status);

  // ---- Memory (scheduler_memory.cc).
  // Makes room for the pass: lets prefixes go, then parks jobs. Returns whether any job is left in it.
  bool MakeRoom();
  bool HasRoom(std::int64_t cells);
  // Returns the bytes that the cache takes, as the budget counts them.
  std::int64_t HeldBytes() const;
  // Returns a bound of the bytes that the composed pass adds.
  std::int64_t PassGrowth(std::int64_t cells);
  void ReleaseMemory();
  // Brings what the cache takes to the budget after a step: prefixes go, then jobs are parked.
  void KeepToBudget();
  void Park(std::size_t index);

  Engine& engine_;
  const SchedulerOptions options_;
  const bool divisible_;
  const int step_tokens_;
  std::int64_t bytes_per_token_ = 0;
  MemoryGovernor governor_;
  std::vector<SequenceLength> growing_;  // scratch of PassGrowth
  SnapshotStates states_;
  std::unique_ptr<PrefixCache> prefixes_;
  const Clock::time_point start_ = Clock::now();

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<JobPtr> inbox_;         // guarded by mutex_
  std::vector<RequestId> cancelled_;  // guarded by mutex_
  std::uint64_t next_id_ = 1;         // guarded by mutex_
  std::size_t unfinished_ = 0;        // guarded by mutex_

  std::deque<JobPtr> waiting_;  // the first goes first
  std::vector<JobPtr> live_;    // in order of their start
  bool starved_ = false;        // a job was parked since the last one left
  std::size_t turn_ = 0;        // which job is first among those that generate

  // The pass.
  std::vector<std::int32_t> tokens_;
  std::vector<Position> positions_;
  std::vector<SequenceId> sequences_;
  std::vector<std::int32_t> rows_;
  std::vector<float> logits_;
};

}  // namespace kvcache
