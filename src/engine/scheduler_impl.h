// The implementation of Scheduler: scheduler.cc has the requests' way in and out, scheduler_step.cc
// one pass, and scheduler_memory.cc what happens when cells run out.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/memory_governor.h"
#include "engine/scheduled_captures.h"
#include "engine/snapshot_states.h"
#include "kvcache_engine/scheduler.h"

namespace kvcache {

// Recurrent caches keep this many states for captures of one pass, at least.
inline constexpr int kMostCapturesPerPass = 6;

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
  const PrefixCache& prefixes() const override { return *prefixes_; }
  std::vector<RequestState> Requests() const override;
  double Now() const override;
  SchedulerStats Stats() const override { return stats_; }
  std::size_t live() const override { return live_.size(); }
  std::size_t waiting() const override;

 private:
  using Clock = std::chrono::steady_clock;

  // A request, with or without a sequence.
  struct Job {
    // What each step looks at.
    std::vector<std::int32_t> tokens{};  // prompt and generated
    Position length = 0;                 // of them evaluated, while it has a sequence
    SequenceId sequence{};
    Position chunk = 0;         // tokens of it in the pass
    std::size_t row = 0;        // of its last token in the pass
    Position furthest = 0;      // the greatest length of all
    int failures = 0;           // passes that failed at `furthest`
    bool in_prompt = true;      // has not sampled since it got its sequence
    bool known = false;         // `prefix` is open
    bool sound = true;          // its state may be kept
    bool started = false;       // had a sequence before
    Position known_tokens = 0;  // keys that the prefix has
    ScheduledCaptures captures{};
    PrefixRequest prefix{};
    RequestId id{};
    // What its beginning, its samples and its end look at.
    Clock::time_point submitted{};
    RequestResult result{};
    ScheduledRequest request;
    Sampler sampler;

    Position pending() const { return static_cast<Position>(tokens.size()) - length; }
    // A shifted context is no prefix of any text: its keys are rotated.
    bool shifted() const { return result.shifts > 0; }
  };
  using JobPtr = std::unique_ptr<Job>;

  // ---- In and out (scheduler.cc).
  void TakeInbox();
  void Admit();
  // Returns whether a live job computes a long part of this one's prompt that it could reuse soon.
  bool ShouldWaitForOthers(const Job& job) const;
  // Gives the job a sequence and what is known of its tokens. Returns false if there is no memory.
  bool Start(JobPtr job, SequenceId sequence);
  bool StartWithEncoder(JobPtr job, SequenceId sequence);
  static void SayStarted(const Job& job);
  Result<PrefixPlan> BeginPrefix(const Job& job);
  // Gives the prefix the keys that it lacks. Returns whether it has all.
  bool AppendKeys(Job& job);
  void ClosePrefix(Job& job);
  void Restore(Job& job, PrefixPlan& plan);
  // Restores the plan's state. Prefixes go as long as there is no room for it, and then perhaps a
  // part of this one.
  Status RestoreState(const Job& job, PrefixPlan& plan);
  // Lets the trie have everything that the job evaluated, and gives its sequence back.
  void LeaveSequence(Job& job);
  // Lets the trie have the captures that have fired.
  void TakeCaptures(Job& job);
  void Keep(Job& job);
  void Finish(Job& job, StopReason stop, Status status = Status::Ok());
  void FinishAt(std::size_t index, StopReason stop, Status status = Status::Ok());
  std::optional<SequenceId> FreeSequence() const;

  // ---- One pass (scheduler_step.cc).
  void Compose();
  // Returns the job whose text the encoder reads in this pass, or null. It alternates with decodes.
  Job* NextToEncode() const;
  bool WaitsForEncoder(const Job& job) const { return engine_.has_encoder() && job.length == 0; }
  // Returns whether passes evaluate the job's prompt, or what it had when it was parked.
  bool ReadsPrompt(const Job& job) const { return job.in_prompt && !WaitsForEncoder(job); }
  Position LimitCaptures(const Job& job, Position count, int& captures) const;
  void AddToBatch(Job& job, Position count);
  // Runs the pass, if it has tokens and memory.
  void Pass();
  Status RunPass();
  void AfterPass();
  // Asks memory for what a step looks at of each job: a pass has displaced it from the processor's caches.
  void FetchJobs() const;
  // Draws a token of the job. Returns whether it goes on; if not, its result says why.
  bool Sample(Job& job, std::span<const float> logits);
  void Draw(Job& job, std::span<const float> logits);
  // Returns whether the job's next token has a position. A full context is shifted if the request has
  // a limit of tokens; without one it would never end.
  Result<bool> MakeContext(Job& job);
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
  // Gives free memory back to the system. Returns whether it could.
  bool ReleaseMemory();
  // Begins the only job again, without a prefix and with all memory. Returns false if that does not
  // help: without EngineOptions::releases_memory, or a second time. The job has ended then.
  bool RestartAlone();
  // Brings what the cache takes to the budget after a step: prefixes go, then jobs are parked.
  void KeepToBudget();
  // Returns the job that gives its sequence up first: of the lowest priority, the last that started.
  std::size_t NextToPark() const;
  void Park(std::size_t index);
  // Parks the job, or ends it if it cannot go on later.
  void ParkOrEnd(std::size_t index);
  // Ends the job's turn without an end: it goes on later, from what the prefixes keep.
  void Requeue(std::size_t index);

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

  std::vector<JobPtr> waiting_;  // the first goes first; has room for the live ones as well
  std::vector<JobPtr> live_;     // in order of their start
  bool starved_ = false;         // a job was parked since the last one left
  std::size_t turn_ = 0;         // which job is first among those that generate
  SchedulerStats stats_;

  // The pass.
  Job* encoding_ = nullptr;  // its text is read in this pass
  std::vector<std::int32_t> tokens_;
  std::vector<Position> positions_;
  std::vector<SequenceId> sequences_;
  std::vector<Job*> prompts_;  // jobs in their prompt
  std::vector<std::int32_t> rows_;
  std::vector<float> logits_;
};

}  // namespace kvcache
