#include "kvcache_engine/session.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/hidden_states.h"
#include "kvcache/transaction.h"

namespace kvcache {

Session::Session(Engine& engine, SequenceId sequence)
    : engine_(engine),
      sequence_(sequence),
      positions_(static_cast<std::size_t>(engine.max_batch())),
      sequences_(static_cast<std::size_t>(engine.max_batch()), sequence),
      logits_(static_cast<std::size_t>(engine.vocabulary_size())) {
  tokens_.reserve(static_cast<std::size_t>(engine.context()));
  if (engine.states() != nullptr) engine.states()->Forget(sequence);
  // A session's sequence begins without tokens, so that it can begin without adapters.
  (void)engine.cache().Remove(sequence, 0, kEndOfSequence).ok();
  (void)engine.SetAdapters(sequence, {}).ok();
}

Session::~Session() {
  (void)engine_.cache().Remove(sequence_, 0, kEndOfSequence).ok();
  (void)engine_.SetAdapters(sequence_, {}).ok();
}

Status Session::UseAdapters(AdapterUses uses) {
  if (!tokens_.empty()) {
    return InvalidArgument(
        StrCat("the session holds ", position(), " tokens; adapters are for all of a text"));
  }
  return engine_.SetAdapters(sequence_, uses);
}

Status Session::Encode(std::span<const std::int32_t> text, const std::atomic<bool>* interrupt) {
  if (!tokens_.empty()) {
    return InvalidArgument(
        StrCat("the session holds ", position(), " tokens; a text is encoded into an empty one"));
  }
  last_pass_tokens_ = 0;
  Status status = engine_.Encode(text, sequence_, interrupt);
  if (!status.ok()) {
    KVCACHE_RETURN_IF_ERROR(engine_.cache().Remove(sequence_, 0, kEndOfSequence));
    return status;
  }
  tokens_.push_back(engine_.info().decoder_start);
  last_pass_tokens_ = 1;
  return Status::Ok();
}

Status Session::Append(std::span<const std::int32_t> tokens, const PassHook& hook,
                       const std::atomic<bool>* interrupt) {
  if (engine_.has_encoder() && tokens_.empty() && !tokens.empty()) {
    return InvalidArgument("the model has an encoder, which reads a text first: call Encode");
  }
  const std::size_t total = tokens_.size() + tokens.size();
  if (total > static_cast<std::size_t>(engine_.context())) {
    return CacheFull(StrCat(total, " tokens do not fit into the context of ", engine_.context()));
  }
  while (!tokens.empty()) {
    if (interrupt != nullptr && interrupt->load(std::memory_order_relaxed)) {
      return {StatusCode::kCancelled, "interrupted"};
    }
    const auto count = std::min(tokens.size(), static_cast<std::size_t>(engine_.max_batch()));
    const Position first = position();
    Status status = Pass(tokens.first(count), interrupt);
    if (status.ok() && hook) status = hook(first, static_cast<std::int32_t>(count));
    if (!status.ok()) {
      KVCACHE_RETURN_IF_ERROR(GoBack(first));
      return status;
    }
    tokens = tokens.subspan(count);
  }
  return Status::Ok();
}

Status Session::Pass(std::span<const std::int32_t> tokens, const std::atomic<bool>* interrupt) {
  const std::size_t count = tokens.size();
  std::iota(positions_.begin(), positions_.begin() + static_cast<std::ptrdiff_t>(count),
            position());
  last_pass_tokens_ = 0;
  Status status = engine_.Forward({.tokens = tokens,
                                   .positions = std::span(positions_).first(count),
                                   .sequences = std::span(sequences_).first(count),
                                   .interrupt = interrupt});
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (status.ok()) last_pass_tokens_ = static_cast<std::int32_t>(count);
  return status;
}

Status Session::Verify(std::int32_t current, std::span<const std::int32_t> drafts,
                       const Verifier& verify) {
  const std::size_t count = 1 + drafts.size();
  KVCACHE_RETURN_IF_ERROR(
      Guarded([&] { return StrCat("no memory for the logits of ", count, " tokens"); },
              [&] {
                all_logits_.resize(count * logits_.size());
                rows_.resize(count);
                round_tokens_.assign({current});
                round_tokens_.insert(round_tokens_.end(), drafts.begin(), drafts.end());
              }));
  last_pass_tokens_ = 0;
  std::iota(positions_.begin(), positions_.begin() + static_cast<std::ptrdiff_t>(count),
            position());
  std::iota(rows_.begin(), rows_.end(), 0);
  KVCACHE_ASSIGN_OR_RETURN(Transaction round,
                           Transaction::Begin({&engine_.cache()}, {{sequence_, position()}},
                                              {.max_tokens = static_cast<Position>(count)}));
  KVCACHE_RETURN_IF_ERROR(engine_.Forward({.tokens = round_tokens_,
                                           .positions = std::span(positions_).first(count),
                                           .sequences = std::span(sequences_).first(count)}));
  KVCACHE_RETURN_IF_ERROR(engine_.Logits(rows_, all_logits_.data()));
  KVCACHE_ASSIGN_OR_RETURN(const Position stay, verify(all_logits_));
  const Position kept = stay + 1;
  KVCACHE_RETURN_IF_ERROR(round.Commit({kept}));
  tokens_.insert(tokens_.end(), round_tokens_.begin(), round_tokens_.begin() + kept);
  return Status::Ok();
}

Result<std::span<const float>> Session::LastLogits() {
  const std::int32_t row[] = {last_pass_tokens_ - 1};
  KVCACHE_RETURN_IF_ERROR(engine_.Logits(row, logits_.data()));
  return std::span<const float>(logits_);
}

Result<std::int32_t> Session::Shift(std::int32_t keep) {
  if (engine_.has_encoder()) {
    return Unsupported(StrCat("the context of ", engine_.context(),
                              " tokens is full, and a model with an encoder cannot remove tokens"));
  }
  const std::int32_t dropped = (position() - keep) / 2;
  if (keep < 0 || dropped < 1) {
    return InvalidArgument(StrCat("keep is ", keep, " of ", position(),
                                  " tokens; it must be at least 0 and leave two tokens or more"));
  }
  KVCACHE_RETURN_IF_ERROR(engine_.cache().CheckRemove(sequence_, keep, keep + dropped));
  const Status removed = engine_.cache().Remove(sequence_, keep, keep + dropped);
  if (!removed.ok()) {  // some keys are moved and some are not
    KVCACHE_RETURN_IF_ERROR(GoBack(0));
    return removed;
  }
  if (engine_.states() != nullptr) engine_.states()->Forget(sequence_);  // positions have changed
  tokens_.erase(tokens_.begin() + keep, tokens_.begin() + keep + dropped);
  KVCACHE_RETURN_IF_ERROR(RestoreTo(position()));
  return dropped;
}

// The cache may return to a smaller length: a window has evicted tokens, or a recurrent state has
// no checkpoint there.
Status Session::GoBack(Position length) {
  KVCACHE_ASSIGN_OR_RETURN(const Position kept, engine_.cache().PrepareRestore(sequence_, length));
  KVCACHE_RETURN_IF_ERROR(engine_.cache().Remove(sequence_, kept, kEndOfSequence));
  tokens_.resize(static_cast<std::size_t>(std::min(kept, position())));
  return Status::Ok();
}

std::span<const float> Session::LastState() const {
  return kvcache::LastState(engine_, sequence_, position());
}

Status Session::Restore(const Snapshot* snapshot, std::span<const std::int32_t> tokens,
                        std::span<const float> last) {
  if (snapshot == nullptr) return InvalidArgument("there is no snapshot to restore");
  last_pass_tokens_ = 0;
  Cache& cache = engine_.cache();
  Status restored =
      cache.snapshots()->Restore(sequence_, snapshot, static_cast<Position>(tokens.size()));
  if (restored.ok()) {
    if (engine_.states() != nullptr) {
      const bool is_whole = snapshot->end() == static_cast<Position>(tokens.size());
      engine_.states()->Restored(sequence_, snapshot->end(),
                                 is_whole ? last : std::span<const float>());
    }
    tokens_.assign(tokens.begin(), tokens.end());
  } else if (!cache.CanResume(sequence_, position())) {
    KVCACHE_RETURN_IF_ERROR(GoBack(0));
  }
  return restored;
}

Status Session::RestoreTo(Position length) {
  const std::vector<std::int32_t> wanted(tokens_.begin(), tokens_.begin() + length);
  KVCACHE_RETURN_IF_ERROR(GoBack(length));
  return Append(std::span(wanted).subspan(tokens_.size()));
}

Status Session::Truncate(Position length) {
  if (length < 0 || length >= position()) return Status::Ok();
  return RestoreTo(length);
}

Status Session::Clear() {
  tokens_.clear();
  if (engine_.states() != nullptr) engine_.states()->Forget(sequence_);
  return engine_.cache().Remove(sequence_, 0, kEndOfSequence);
}

Status Session::ForkFrom(const Session& source, Position length) {
  if (length < 0 || length > source.position()) {
    return InvalidArgument(StrCat("prefix length is ", length, "; must be from 0 to ",
                                  source.position(), ", the source's tokens"));
  }
  if (&source.engine_ != &engine_) {
    return InvalidArgument("the source is a session of another engine");
  }
  if (&source == this) return RestoreTo(length);
  KVCACHE_RETURN_IF_ERROR(Clear());
  KVCACHE_RETURN_IF_ERROR(engine_.SetAdapters(sequence_, engine_.adapters_of(source.sequence_)));
  KVCACHE_RETURN_IF_ERROR(engine_.cache().CopyPrefix(source.sequence_, sequence_, length));
  if (engine_.states() != nullptr) engine_.states()->Copy(source.sequence_, sequence_);
  tokens_.assign(source.tokens_.begin(), source.tokens_.begin() + length);
  return RestoreTo(length);
}

}  // namespace kvcache
