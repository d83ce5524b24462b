#include "engine/scheduler/context_shift.h"

#include "engine/engine_impl.h"
#include "engine/prefixes/sequence_states.h"
#include "kvcache/transaction.h"

namespace kvcache {
namespace {

// A window evicts only when a pass or a transaction needs its cells, so after a round it may hold more than
// it retains, and a shift then finds no free cells. A transaction that needs as many as possible, and does
// nothing, frees them.
void EvictWindows(Cache& cache, const Job& job) {
  Cache* const caches[] = {&cache};
  const SequenceLength member[] = {{job.sequence, job.length}};
  for (Position most = job.length; most > 0; most /= 2) {
    if (Transaction::Begin(caches, member, {.max_tokens = most}).ok()) return;
  }
}

// Removes half of the tokens behind the first one, if that begins the text.
Status Shift(Engine& engine, JobPrefixes& prefixes, Job& job) {
  prefixes.TakeCaptures(job);
  prefixes.Keep(job);
  prefixes.Close(job);
  const Position keep = job.tokens.front() == engine.tokenizer().bos() ? 1 : 0;
  const Position dropped = (job.length - keep) / 2;
  Cache& cache = engine.cache();
  while (cache.FreeCells() < job.length && prefixes.cache().Evict(job.length) >= 0) {
  }
  if (cache.CheckRemove(job.sequence, keep, keep + dropped).code() == StatusCode::kCacheFull) {
    EvictWindows(cache, job);
  }
  KVCACHE_RETURN_IF_ERROR(cache.CheckRemove(job.sequence, keep, keep + dropped));
  KVCACHE_RETURN_IF_ERROR(cache.Remove(job.sequence, keep, keep + dropped));
  if (engine.states() != nullptr) engine.states()->Forget(job.sequence);  // positions have changed
  job.tokens.erase(job.tokens.begin() + keep, job.tokens.begin() + keep + dropped);
  ++job.result.shifts;
  const Position length = job.length - dropped;
  KVCACHE_ASSIGN_OR_RETURN(const Position kept, cache.PrepareRestore(job.sequence, length));
  KVCACHE_RETURN_IF_ERROR(cache.Remove(job.sequence, kept, kEndOfSequence));
  job.length = kept;
  job.in_prompt = job.pending() > 1;
  return Status::Ok();
}

}  // namespace

Result<bool> MakeContext(Engine& engine, JobPrefixes& prefixes, Job& job) {
  if (static_cast<Position>(job.tokens.size()) <= engine.context()) return true;
  if (job.request.max_tokens < 0 || engine.context() < 4) return false;
  const Status shifted = Shift(engine, prefixes, job);
  if (shifted.code() == StatusCode::kUnsupported) return false;
  KVCACHE_RETURN_IF_ERROR(shifted);
  return true;
}

}  // namespace kvcache
