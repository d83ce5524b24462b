// Begins a request in a sequence: restores what memory has of its tokens, begins to load what the store has beyond that,
// and reports both.
//
// Thread safety: the engine's thread.
#pragma once

#include "engine/scheduler/job.h"
#include "engine/scheduler/job_prefixes.h"
#include "engine/scheduler/pass/draft_proposals.h"
#include "engine/scheduler/store_loads.h"

namespace kvcache {

class JobStarter {
 public:
  // The arguments must outlive it.
  JobStarter(Engine& engine, JobPrefixes& prefixes, StoreLoads& loads, DraftProposals& proposals,
             SchedulerStats& stats)
      : engine_(engine), prefixes_(prefixes), loads_(loads), proposals_(proposals), stats_(stats) {}

  // Begins the request in an empty sequence. Errors: those of PrefixCache::Begin.
  Status Start(Job& job, SequenceId sequence);

 private:
  // The same for a text that an encoder reads.
  void StartText(Job& job);
  void Restore(Job& job, PrefixPlan& plan);

  Engine& engine_;
  JobPrefixes& prefixes_;
  StoreLoads& loads_;
  DraftProposals& proposals_;
  SchedulerStats& stats_;
};

}  // namespace kvcache
