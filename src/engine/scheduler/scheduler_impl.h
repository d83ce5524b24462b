// The implementation of Scheduler: scheduler.cc has the requests' way in and out, scheduler_step.cc
// one pass, scheduler_speculation.cc the drafts in it, scheduler_store.cc what comes from a store and
// goes there, scheduler_encoder.cc the texts that an encoder reads, and scheduler_memory.cc what happens
// when cells run out.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/prefixes/scheduled_captures.h"
#include "engine/prefixes/snapshot_states.h"
#include "engine/scheduler/memory_governor.h"
#include "engine/scheduler/prefill_pace.h"
#include "engine/scheduler/scheduler_speculation.h"
#include "engine/scheduler/scheduler_store.h"
#include "kvcache/transaction.h"
#include "kvcache_engine/scheduler.h"
#include "speculation/draft_plan.h"
#include "speculation/pass_costs.h"

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
  std::int64_t SetBudget(std::int64_t bytes) override;
  Result<PrefixMatch> Probe(std::span<const std::int32_t> prompt,
                            std::uint64_t salt) const override;
  PrefixCache& prefixes() override { return *prefixes_; }
  const PrefixCache& prefixes() const override { return *prefixes_; }
  std::vector<RequestState> Requests() const override;
  double Now() const override;
  SchedulerStats Stats() const override {
    const std::lock_guard lock(mutex_);
    return published_;
  }
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
    Position chunk = 0;          // tokens of it in the pass, with drafts
    Position drafted = 0;        // drafts of them
    std::size_t logits_row = 0;  // of its first row with logits
    std::int32_t drawn = -1;     // the last token that was sampled
    std::size_t row = 0;         // of its last token in the pass
    Position furthest = 0;       // the greatest length of all
    int failures = 0;            // passes that failed at `furthest`
    bool in_prompt = true;       // has not sampled since it got its sequence
    bool known = false;          // `prefix` is open
    bool sound = true;           // its state may be kept
    bool started = false;        // had a sequence before
    Position known_tokens = 0;   // keys that the prefix has
    ScheduledCaptures captures{};
    std::unique_ptr<JobDrafts> drafts{};  // null: it has none
    PrefixRequest prefix{};
    JobStore store{};
    RequestId id{};
    // What its beginning, its samples and its end look at.
    Clock::time_point submitted{};
    RequestResult result{};
    ScheduledRequest request;
    Sampler sampler;

    Position pending() const { return static_cast<Position>(tokens.size()) - length; }
    // Returns whether the pass leaves logits to sample from.
    bool samples() const { return chunk > 0 && chunk - drafted == pending(); }
    // A shifted context is no prefix of any text: its keys are rotated.
    bool shifted() const { return result.shifts > 0; }
  };
  using JobPtr = std::unique_ptr<Job>;

  // ---- In and out (scheduler.cc).
  void TakeInbox();
  void Admit();
  // Returns whether a live job computes a long part of this one's prompt that it could reuse soon. What it computed
  // already can be reused from now on.
  bool ShouldWaitForOthers(const Job& job);
  // Lets others begin with what the job has read of its prompt.
  void ShareWhatWasRead(Job& reader);
  // Gives the job a sequence and what is known of its tokens. Returns false if there is no memory.
  bool Start(JobPtr job, SequenceId sequence);
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
  void RunStep();
  void Publish();
  void Compose();
  // Adds prompts, at most `room` tokens, to a pass that has decodes.
  void ComposePrompts(Position room);
  // Returns whether passes evaluate the job's prompt, or what it had when it was parked.
  bool ReadsPrompt(const Job& job) const {
    return job.in_prompt && !WaitsForEncoder(job) && !job.store.is_loading();
  }
  // Returns the tokens of each step that prompts get at least, while any wait.
  std::size_t PartForPrompts() const {
    const auto step = static_cast<std::size_t>(step_tokens_);
    const std::size_t least = std::min<std::size_t>(PrefillPace::kLeastTokens, step / 2);
    return std::max({std::size_t{1}, least, step / 8});
  }
  Position LimitCaptures(const Job& job, Position count, int& captures) const;
  void AddToBatch(Job& job, Position count);
  void AddDraftsToBatch(Job& job);
  // Makes the pass one of trees, or all drafts chains if it cannot be one.
  void ComposeTrees();
  // Runs the pass, if it has tokens and memory.
  void Pass();
  Status RunPass();
  // Learns from a pass that read this of prompts.
  void CountCosts(const PrefillWork& work);
  void AfterPass();
  // Asks memory for what a step looks at of each job: a pass has displaced it from the processor's caches.
  void FetchJobs() const;
  // Draws a token of the job after `length` tokens. Returns whether it goes on; if not, its result says
  // why.
  bool Sample(Job& job, Position length, std::span<const float> logits);
  void Draw(Job& job, std::span<const float> logits);
  // Returns a token that the request allows; -1: it ends, as its result says.
  std::int32_t DrawAllowed(Job& job, std::span<const float> logits);
  // Returns whether the job's next token has a position. A full context is shifted if the request has
  // a limit of tokens; without one it would never end.
  Result<bool> MakeContext(Job& job);
  Status Shift(Job& job);
  void PassFailed(const Status& status);

  // ---- Drafts (scheduler_speculation.cc).
  // Gives the job a drafter that looks drafts up, if it has none and may have one.
  void GiveDrafter(Job& job);
  // Plans the drafts of the next pass, and asks the drafters for them.
  void ProposeDrafts();
  // The pass has `tokens` other tokens, `decodes` of them of requests that generate, and room for `left`
  // drafts.
  void PlanDrafts(int tokens, int decodes, int left);
  // Asks the drafters of all jobs that want drafts; those of one batch together.
  void AskDrafters();
  void AddAsk(Job& job);
  // Tells the job's drafter what is new in its text.
  static Status TellDrafter(Job& job);
  // Asks the drafters of `asks_`; null: there is one, which has no batch.
  void Ask(BatchDrafter* batch);
  void TakeDrafts(Job& job, DraftAsk& ask);
  // The job goes on without its drafter, which has failed.
  static void LoseDrafter(Job& job, Status status);
  // Returns how many drafts the job has room for.
  Position MostDrafts(const Job& job) const;
  bool AnyDrafts() const;  // in the pass
  void DropDrafts();
  void TakeDraftsOut();
  void BeginRound();
  bool GiveUpRound(const Status& status);
  void Judge(Job& job);
  void JudgeRound();
  Status KeepJudged();
  // Lets windows evict what they kept for the last round.
  void EvictWindows(const Job& job);
  // Ends the round for a job with drafts. Returns whether the job stays.
  bool EndOfRound(std::size_t index);

  // ---- The engine's store (scheduler_store.cc).
  // Begins to load what the store has beyond the job's tokens. Schedules the captures, now or afterwards.
  void BeginLoad(Job& job, std::vector<Position> captures);
  // Restores what was loaded, a bounded number of bytes.
  void AdvanceLoads();
  // Asks the loader for what is of use of the job's tokens, at most `most`.
  void StartLoad(Job& job, Position most);
  // Learns how many tokens of prompts a second of passes computes.
  void MeasurePasses();
  // Returns whether the job has waited longer than its tokens take to compute.
  bool IsLate(const Job& job) const;
  // Restores a piece. Returns false if it cannot: the load has ended then.
  bool Apply(Job& job, const StoreLoader::Fetched& fetched);
  Status ApplySnapshot(Job& job, const StoreLoader::Fetched& fetched, Position target);
  bool HoldsTwice(const Job& job) const;
  // Lets prefixes go until there is room for more tokens of the job. Returns whether there is.
  bool HasRoomFor(Job& job, Position tokens);
  // Counts tokens that came from the store.
  void AddStored(Job& job, Position tokens, StoreTier tier);
  // Counts restored tokens that are computed after all.
  void LoseRestored(Job& job);
  void EndLoad(Job& job, std::string problem);
  void CancelLoad(Job& job);
  // Waits a moment if jobs are loading.
  void WaitForLoads();
  void SavePieces(Job& job, PrefixStore::Extent extent);
  void SaveState(Job& job, const Snapshot& state, Position length);

  // ---- Texts that an encoder reads (scheduler_encoder.cc).
  bool StartWithEncoder(JobPtr job, SequenceId sequence);
  // Returns the job whose text the encoder reads in this pass, or null. It alternates with decodes.
  Job* NextToEncode() const;
  bool WaitsForEncoder(const Job& job) const {
    return engine_.has_encoder() && job.length == 0 && !job.store.has_output;
  }
  // Learns how many tokens a second of the encoder reads, from the last pass.
  void MeasureEncoder();
  void AddRate(double rate);
  // Restores the output of the job's text, if it can, and ends the load: nothing else comes.
  void ApplyOutput(Job& job, const StoreLoader::Fetched& fetched);
  // Stores the output that the encoder gave for the job's text.
  void SaveOutput(Job& job);

  // ---- Memory (scheduler_memory.cc).
  // Makes room for the pass: lets prefixes go, then parks jobs. Returns whether any job is left in it.
  bool MakeRoom();
  bool HasRoom(std::int64_t cells);
  // Returns the bytes that the cache takes, as the budget counts them.
  std::int64_t HeldBytes() const;
  // Returns a bound of the bytes that the composed pass adds.
  std::int64_t PassGrowth(std::int64_t cells);
  // Returns the bytes of so many rows of logits, or of the buffer, beyond those of the workspace.
  std::int64_t RowBytes(std::size_t rows) const;
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
  std::unique_ptr<StoreLoader> loader_;  // null without a store
  double computes_per_s_ = 0.0;          // tokens of prompts; 0: unknown
  std::int64_t measured_tokens_ = 0;     // of stats_, at the last measurement
  double measured_seconds_ = 0.0;
  const Clock::time_point start_ = Clock::now();

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<JobPtr> inbox_;         // guarded by mutex_
  std::vector<RequestId> cancelled_;  // guarded by mutex_
  std::uint64_t next_id_ = 1;         // guarded by mutex_
  std::size_t unfinished_ = 0;        // guarded by mutex_
  SchedulerStats published_;          // stats_ after the last step; guarded by mutex_

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
  std::vector<std::int32_t> parents_;  // of a pass with trees; else empty
  std::vector<Job*> prompts_;          // jobs in their prompt
  std::vector<std::int32_t> rows_;
  std::vector<float> allowed_;  // scratch of DrawAllowed
  std::vector<float> logits_;   // grows to the most rows of a pass so far
  double last_pass_seconds_ = 0.0;
  PrefillPace pace_;  // of prompts beside decodes

  // Drafts.
  std::optional<Transaction> round_;  // of the pass
  bool rounds_work_ = true;           // the cache has transactions
  bool trees_work_ = true;            // no pass of drafts has failed to keep what it should
  int passes_with_drafts_ = 0;
  PassCosts costs_;
  DraftRates rates_of_own_;  // of the drafters that the scheduler gives
  DraftPlan plan_;
  std::vector<DraftShare> shares_;       // [live]
  std::vector<DraftAsk> asks_;           // scratch of AskDrafters
  std::vector<Job*> asking_;             // [asks]
  std::vector<SequenceLength> members_;  // of the round
  std::vector<Position> kept_;           // [members]
  std::vector<std::int32_t> last_;  // batch indices of the drafts that stay, in a pass of trees
};

}  // namespace kvcache
