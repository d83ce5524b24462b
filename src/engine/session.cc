#include "kvcache_engine/session.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/pictures/axes.h"
#include "engine/pictures/picture_rows.h"
#include "engine/pictures/prompt_pictures.h"
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
  KVCACHE_RETURN_IF_ERROR(CheckFits(tokens.size()));
  while (!tokens.empty()) {
    const auto count = std::min(tokens.size(), static_cast<std::size_t>(engine_.max_batch()));
    KVCACHE_RETURN_IF_ERROR(PassAndHook(tokens.first(count), {}, hook, interrupt));
    tokens = tokens.subspan(count);
  }
  return Status::Ok();
}

Status Session::AppendPicture(const PicturePtr& picture, const PassHook& hook,
                              const std::atomic<bool>* interrupt) {
  if (picture == nullptr) return InvalidArgument("there is no picture to append");
  KVCACHE_RETURN_IF_ERROR(engine_.CheckTakesPictures());
  KVCACHE_RETURN_IF_ERROR(CheckFits(static_cast<std::size_t>(picture->cells())));
  const std::int32_t most = engine_.max_batch();
  if (picture->shape().is_whole && picture->cells() > most) {
    return InvalidArgument(StrCat("a picture has ", picture->cells(), " tokens, a pass at most ",
                                  most, ", and the model reads a picture in one pass"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const EmbeddedPtr rows, engine_.pictures()->Compute(picture, interrupt));
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for the list of pictures", [&] {
    pictures_.push_back({position(), picture});
  }));
  for (std::int32_t done = 0; done < picture->cells();) {
    const std::int32_t count = std::min(picture->cells() - done, most);
    const InputRows input[] = {
        {.count = count, .values = rows->Row(done), .see_each_other = picture->shape().is_whole}};
    const auto ids =
        picture->ids().subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count));
    Status status = PassAndHook(ids, input, hook, interrupt);
    if (!status.ok()) {
      KVCACHE_RETURN_IF_ERROR(GoBack(position()));  // a part of a picture does not stay
      return status;
    }
    done += count;
  }
  return Status::Ok();
}

std::span<const Position> Session::NextAxes(std::size_t count) {
  if (pictures_.empty() || !engine_.info().three_axes) return {};
  axes_.resize(3 * count);
  WriteAxes(pictures_, position(), static_cast<Position>(count), 0, axes_);
  return axes_;
}

Status Session::CheckFits(std::size_t tokens) const {
  const std::size_t total = tokens_.size() + tokens;
  if (total <= static_cast<std::size_t>(engine_.context())) return Status::Ok();
  return CacheFull(StrCat(total, " tokens do not fit into the context of ", engine_.context()));
}

Status Session::PassAndHook(std::span<const std::int32_t> tokens, std::span<const InputRows> rows,
                            const PassHook& hook, const std::atomic<bool>* interrupt) {
  if (interrupt != nullptr && interrupt->load(std::memory_order_relaxed)) {
    return {StatusCode::kCancelled, "interrupted"};
  }
  const Position first = position();
  Status status = Pass(tokens, rows, interrupt);
  if (status.ok() && hook) status = hook(first, static_cast<std::int32_t>(tokens.size()));
  if (!status.ok()) KVCACHE_RETURN_IF_ERROR(GoBack(first));
  return status;
}

Status Session::Pass(std::span<const std::int32_t> tokens, std::span<const InputRows> rows,
                     const std::atomic<bool>* interrupt) {
  const std::size_t count = tokens.size();
  std::iota(positions_.begin(), positions_.begin() + static_cast<std::ptrdiff_t>(count),
            position());
  last_pass_tokens_ = 0;
  Status status = Guarded("no memory for the positions of a pass", [&] {
    return engine_.Forward({.tokens = tokens,
                            .positions = std::span(positions_).first(count),
                            .sequences = std::span(sequences_).first(count),
                            .rows = rows,
                            .axes = NextAxes(count),
                            .interrupt = interrupt});
  });
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
                                           .sequences = std::span(sequences_).first(count),
                                           .axes = NextAxes(count)}));
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
  keep = std::min(BehindPicture(pictures_, keep), std::max(keep, position()));
  if (engine_.has_encoder()) {
    return Unsupported(StrCat("the context of ", engine_.context(),
                              " tokens is full, and a model with an encoder cannot remove tokens"));
  }
  if (engine_.info().three_axes && !pictures_.empty()) {
    return Unsupported(StrCat("the context of ", engine_.context(),
                              " tokens is full, and positions of pictures cannot be moved"));
  }
  const std::int32_t dropped = EndOfShift(pictures_, keep, position()) - keep;
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
  EraseTokens(pictures_, keep, keep + dropped);
  KVCACHE_RETURN_IF_ERROR(RestoreTo(position()));
  return dropped;
}

// The cache may return to a smaller length: a window has evicted tokens, or a recurrent state has
// no checkpoint there.
Status Session::GoBack(Position length) {
  KVCACHE_ASSIGN_OR_RETURN(const Position kept, engine_.cache().PrepareRestore(sequence_, length));
  KVCACHE_RETURN_IF_ERROR(engine_.cache().Remove(sequence_, kept, kEndOfSequence));
  tokens_.resize(static_cast<std::size_t>(std::min(kept, position())));
  if (pictures_.empty()) return Status::Ok();
  const Position whole = BeforePicture(pictures_, position());
  std::erase_if(pictures_, [&](const PromptPicture& picture) { return picture.end() > whole; });
  return whole < position() ? GoBack(whole) : Status::Ok();
}

std::span<const float> Session::LastState() const {
  return kvcache::LastState(engine_, sequence_, position());
}

Status Session::Restore(const Snapshot* snapshot, std::span<const std::int32_t> tokens,
                        std::span<const float> last) {
  if (snapshot == nullptr) return InvalidArgument("there is no snapshot to restore");
  // Positions with three axes depend on the pictures' grids, and no text may end inside a picture.
  const auto id = std::ranges::find_if(tokens, [](std::int32_t token) { return token < 0; });
  if (id != tokens.end()) {
    return Unsupported(StrCat("token ", id - tokens.begin(), " is ", *id,
                              ", a cell of a picture; a session restores texts without pictures"));
  }
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
    pictures_.clear();
  } else if (!cache.CanResume(sequence_, position())) {
    KVCACHE_RETURN_IF_ERROR(GoBack(0));
  }
  return restored;
}

Status Session::RestoreTo(Position length) {
  const std::vector<std::int32_t> wanted(tokens_.begin(), tokens_.begin() + length);
  const std::vector<PromptPicture> pictures = pictures_;
  KVCACHE_RETURN_IF_ERROR(GoBack(length));
  while (position() < length) {
    const PromptPicture* const next = PictureFrom(pictures, position());
    const Position end = next == nullptr ? length : std::min(next->begin, length);
    KVCACHE_RETURN_IF_ERROR(
        Append(std::span(wanted).first(static_cast<std::size_t>(end)).subspan(tokens_.size())));
    if (next != nullptr && end < length) KVCACHE_RETURN_IF_ERROR(AppendPicture(next->picture));
  }
  return Status::Ok();
}

Status Session::Truncate(Position length) {
  if (length < 0 || length >= position()) return Status::Ok();
  return RestoreTo(BeforePicture(pictures_, length));
}

Status Session::Clear() {
  tokens_.clear();
  pictures_.clear();
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
  if (&source == this) return RestoreTo(BeforePicture(pictures_, length));
  KVCACHE_RETURN_IF_ERROR(Clear());
  KVCACHE_RETURN_IF_ERROR(engine_.SetAdapters(sequence_, engine_.adapters_of(source.sequence_)));
  KVCACHE_RETURN_IF_ERROR(engine_.cache().CopyPrefix(source.sequence_, sequence_, length));
  if (engine_.states() != nullptr) engine_.states()->Copy(source.sequence_, sequence_);
  tokens_.assign(source.tokens_.begin(), source.tokens_.begin() + length);
  pictures_ = source.pictures_;
  std::erase_if(pictures_, [&](const PromptPicture& picture) { return picture.begin >= length; });
  return RestoreTo(BeforePicture(pictures_, length));
}

}  // namespace kvcache
