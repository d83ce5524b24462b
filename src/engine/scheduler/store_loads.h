// What requests restore from the engine's store, beyond the prefixes in memory. Other requests continue meanwhile.
//
// Thread safety: the engine's thread.
// Design: docs/design/store.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/persist/store_loader.h"
#include "engine/scheduler/job.h"
#include "engine/scheduler/job_prefixes.h"
#include "engine/scheduler/memory_budget.h"

namespace kvcache {

class StoreLoads {
 public:
  // The arguments must outlive it. Throws std::bad_alloc.
  StoreLoads(Engine& engine, const SchedulerOptions& options, JobPrefixes& prefixes,
             MemoryBudget& memory, SchedulerStats& stats);

  // Begins to load what the store has beyond the request's tokens. Schedules the captures, now or afterwards.
  void Begin(Job& job, std::vector<Position> captures);
  // Begins to load the output of the encoder for the request's text.
  void BeginText(Job& job);
  // Restores what was loaded, a bounded number of bytes.
  void Advance(std::span<const JobPtr> live);
  // Drops what is left of a load.
  void Cancel(Job& job);
  // Waits a moment if requests are loading.
  void Wait(std::span<const JobPtr> live);
  // Learns how many tokens a second of the encoder reads.
  void CountText(Position tokens, double seconds);

 private:
  // Asks the loader for what is of use of the request's tokens, at most `max`.
  void Start(Job& job, Position max);
  // Learns how many tokens of prompts a second of passes computes.
  void MeasurePasses();
  void AddRate(double rate);
  // Returns whether the request has waited longer than its tokens take to compute.
  bool IsLate(const Job& job) const;
  void Advance(Job& job, std::int64_t& bytes);
  // Restores a piece. Returns false if it cannot: the load has ended then.
  bool Apply(Job& job, const StoreLoader::Fetched& fetched);
  Status ApplySnapshot(Job& job, const StoreLoader::Fetched& fetched, Position target);
  // Removes an object that is wrong from the store.
  void Replace(Job& job, const StoreLoader::Fetched& fetched);
  // Gives up a load whose piece was not restored.
  void GiveUp(Job& job, const StoreLoader::Fetched& fetched, const Status& status);
  // Restores the output of the request's text, if it can, and ends the load: nothing else comes.
  void ApplyOutput(Job& job, const StoreLoader::Fetched& fetched);
  bool HoldsTwice(const Job& job) const;
  // Lets prefixes go until there is room for more tokens of the request. Returns whether there is.
  bool HasRoomFor(Job& job, Position tokens);
  // Counts tokens that came from the store.
  void AddStored(Job& job, Position tokens, StoreTier tier);
  // Counts restored tokens that are computed after all.
  void LoseRestored(Job& job);
  void End(Job& job, std::string problem);
  // Takes the cells of a picture back of which the store has a part.
  void LeavePicture(Job& job);

  Engine& engine_;
  const int max_wait_ms_;  // for room in the store's queue
  JobPrefixes& prefixes_;
  MemoryBudget& memory_;
  SchedulerStats& stats_;
  std::unique_ptr<StoreLoader> loader_;  // null without a store
  double computes_per_s_ = 0.0;          // tokens of prompts; 0: unknown
  std::int64_t measured_tokens_ = 0;     // of stats_, at the last measurement
  double measured_seconds_ = 0.0;
};

}  // namespace kvcache
