// Who drafts for which request, and how many tokens the next pass verifies.
//
// Thread safety: the engine's thread.
// Design: docs/design/speculation.md.
#pragma once

#include <span>
#include <vector>

#include "engine/scheduler/job.h"
#include "engine/scheduler/job_prefixes.h"
#include "engine/scheduler/pass/pass_composer.h"
#include "speculation/draft_plan.h"

namespace kvcache {

class DraftProposals {
 public:
  // The arguments must outlive it.
  DraftProposals(Engine& engine, const SchedulerOptions& options, JobPrefixes& prefixes)
      : engine_(engine), options_(options), prefixes_(prefixes) {}

  // Gives the request one of the scheduler's own drafters, if it has none and may have one.
  void GiveDrafter(Job& job);
  // Replaces what is proposed for the next pass of these requests. `composer` composes that pass.
  void Propose(std::span<const JobPtr> live, const PassComposer& composer);
  // Forgets what is proposed.
  static void Drop(std::span<const JobPtr> live);
  // Learns from a pass of `tokens` tokens. With a prompt beside decodes it says little of the costs of drafts: the
  // prompt's tokens are as dear as its history is long.
  void CountPass(int tokens, int prompt_tokens, double seconds);

 private:
  // Returns how many drafts the request has room for.
  Position MaxDrafts(const Job& job) const;
  // Sets JobDrafts::wanted. The pass has `tokens` other tokens, `decodes` of them of requests that generate, and room
  // for `left` drafts. Throws std::bad_alloc.
  void Plan(std::span<const JobPtr> live, int tokens, int decodes, int left);
  // Asks the drafters of all requests that want drafts; those of one batch together. Throws std::bad_alloc.
  void AskAll(std::span<const JobPtr> live);
  void AddAsk(Job& job);
  // Tells the request's drafter what is new in its text.
  static Status Tell(Job& job);
  // Asks the drafters of `asks_`; null: there is one, which has no batch.
  void Ask(BatchDrafter* batch);
  void TakeDrafts(Job& job, DraftAsk& ask) const;

  Engine& engine_;
  const SchedulerOptions& options_;
  JobPrefixes& prefixes_;
  DraftRates rates_;  // of the scheduler's own drafters
  DraftPlan plan_;
  std::vector<DraftShare> shares_;  // [live]
  std::vector<DraftAsk> asks_;      // scratch of AskAll
  std::vector<Job*> asking_;        // [asks]
};

}  // namespace kvcache
