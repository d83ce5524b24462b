// Verifies the drafts of one pass. The sequences with drafts are in a transaction, and no others, so that prompts in
// the same pass are not concerned. A request's samples are drawn as without drafts, from rows with the same bits, so
// its text is the same.
//
//   Begin ─► PassRunner::Run ─► Verify
//                 └─ error ───► GiveUp
//
// Thread safety: the engine's thread.
// Design: docs/design/speculation.md.
#pragma once

#include <optional>
#include <vector>

#include "engine/scheduler/pass/composed_pass.h"
#include "engine/scheduler/pass/job_sampler.h"
#include "engine/scheduler/pass/pass_runner.h"
#include "kvcache/transaction.h"

namespace kvcache {

class DraftRound {
 public:
  // `engine` must outlive it.
  explicit DraftRound(Engine& engine) : engine_(engine) {}

  // Returns whether the cache has transactions, as far as is known.
  bool works() const { return works_; }
  // Begins a round if the pass has drafts. Without room for it the pass loses them.
  void Begin(ComposedPass& pass);
  // Ends the round of a pass that failed. Returns whether the pass has not begun, and has lost its drafts: it can be
  // tried again.
  bool GiveUp(const Status& status, ComposedPass& pass);
  // Draws the samples of all requests with drafts: PassRows::kept.
  void Verify(ComposedPass& pass, const PassRunner& runner, JobSampler& sampler);
  // Ends the round, if there is one: keeps the rows that the samples came from. If the cache fails to keep them, kept
  // is 0: the requests compute them again, and what was drawn stays drawn.
  void Keep(ComposedPass& pass, PassRunner& runner);

 private:
  Status Open(const ComposedPass& pass);
  Status Commit(const ComposedPass& pass);

  Engine& engine_;
  bool works_ = true;
  std::optional<Transaction> transaction_;
  std::vector<SequenceLength> members_;
  std::vector<Position> kept_;  // [members]
};

}  // namespace kvcache
