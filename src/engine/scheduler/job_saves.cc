#include "engine/scheduler/job_saves.h"

#include <span>

#include "engine/engine_impl.h"
#include "engine/prefixes/hidden_states.h"

namespace kvcache {

void SavePieces(Engine& engine, Job& job, PrefixStore::Extent extent) {
  if (!job.store.saves || job.shifted()) return;
  engine.prefix_store()->SavePieces(
      job.sequence, std::span(job.tokens).first(static_cast<std::size_t>(job.length)), extent,
      job.store.known);
}

void SaveState(Engine& engine, Job& job, const Snapshot& state, Position length) {
  if (!job.store.saves || job.shifted()) return;
  PrefixStore& store = *engine.prefix_store();
  const bool is_worth_it = store.IsStateWorthStoring(
      length, static_cast<Position>(job.request.prompt.size()), job.request.restore_points);
  if (!is_worth_it) return;
  store.SaveState(state, LastState(engine, job.sequence, length),
                  std::span(job.tokens).first(static_cast<std::size_t>(length)), job.salt,
                  job.store.known);
}

void SaveOutput(Engine& engine, Job& job) {
  if (!engine.has_encoder() || !job.store.saves || job.store.has_output) return;
  engine.prefix_store()->SaveOutput(job.sequence, job.request.prompt, job.salt, job.store.known);
}

}  // namespace kvcache
