#include "engine/scheduler/context_shift.h"

#include "base/errors.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/hidden_states.h"

namespace kvcache {
namespace {

// A window evicts only when a pass needs its cells, so after a round the sequences may hold more than they
// retain, and a shift then finds no free cells.
void EvictWindows(Engine& engine) {
  for (int i = 0; i < engine.options().max_sequences; ++i) {
    // Refused while the sequence is in a round.
    (void)engine.cache().EvictWindow(SequenceId{i}).ok();
  }
}

// Removes half of the tokens behind the first one, if that begins the text.
Status Shift(Engine& engine, JobPrefixes& prefixes, Job& job) {
  if (job.pictures != nullptr && engine.info().three_axes) {
    return Unsupported("positions of pictures cannot be moved");
  }
  prefixes.TakeCaptures(job);
  prefixes.Keep(job);
  prefixes.Close(job);
  const Position keep = job.tokens.front() == engine.tokenizer().bos() ? 1 : 0;
  Position dropped = (job.length - keep) / 2;
  if (job.pictures != nullptr) {  // a picture goes as a whole
    dropped = EndOfShift(job.pictures->list, keep, job.length) - keep;
  }
  Cache& cache = engine.cache();
  while (cache.memory()->FreeCells() < job.length && prefixes.cache().Evict(job.length) >= 0) {
  }
  if (cache.CheckRemove(job.sequence, keep, keep + dropped).code() == StatusCode::kCacheFull) {
    EvictWindows(engine);
  }
  KVCACHE_RETURN_IF_ERROR(cache.CheckRemove(job.sequence, keep, keep + dropped));
  KVCACHE_RETURN_IF_ERROR(cache.Remove(job.sequence, keep, keep + dropped));
  if (engine.states() != nullptr) engine.states()->Forget(job.sequence);  // positions have changed
  job.tokens.erase(job.tokens.begin() + keep, job.tokens.begin() + keep + dropped);
  if (job.pictures != nullptr) job.pictures->Erase(keep, keep + dropped);
  ++job.result.shifts;
  const Position length = job.length - dropped;
  KVCACHE_ASSIGN_OR_RETURN(Position kept, cache.PrepareRestore(job.sequence, length));
  if (job.pictures != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(kept, cache.PrepareRestore(job.sequence, job.pictures->Before(kept)));
  }
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
