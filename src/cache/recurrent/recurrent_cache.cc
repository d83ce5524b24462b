#include "kvcache/recurrent_cache.h"

#include <memory>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "cache/recurrent/recurrent_cache_impl.h"

namespace kvcache {

Status RecurrentCacheImpl::SetCheckpoints(const CheckpointOptions& checkpoints) {
  if (parts_.sizes.capacity > 0) return Invalid("SetCheckpoints after Init; call it before");
  parts_.options.checkpoints = checkpoints;
  return Status::Ok();
}

Status RecurrentCacheImpl::Init(KvBackend& backend, const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(parts_.CheckInit(backend, options));
  KVCACHE_RETURN_IF_ERROR(
      Guarded([&] { return "no memory for the states of " + SizesText(options); },
              [&] {
                parts_.Reset(backend, options);
                pass_.Reset(options);
                rounds_.Reset(parts_.attention.open_transactions(), parts_.states, options);
              }));
  parts_.sizes = options;
  return parts_.attention.Init(backend, options);
}

void RecurrentCacheImpl::Close() {
  parts_.Close();
  pass_.Clear();
}

Status RecurrentCacheImpl::CopyPrefix(SequenceId src, SequenceId dst, Position length) {
  if (src == dst) {
    KVCACHE_RETURN_IF_ERROR(CheckPrefix(length));
    return Remove(src, length, kEndOfSequence);
  }
  KVCACHE_RETURN_IF_ERROR(parts_.attention.CopyPrefix(src, dst, length));
  pass_.EndStates();
  parts_.states.Share(src, dst, length);
  parts_.captures.Cancel(dst);
  parts_.Unprepare(dst);
  return Status::Ok();
}

bool RecurrentCacheImpl::CanResume(SequenceId sequence, Position position) const {
  return parts_.attention.CanResume(sequence, position) &&
         (position == 0 || parts_.states.Newest(sequence, position) > 0);
}

// A window may be incomplete at a restore point, and complete at an older one.
Result<Position> RecurrentCacheImpl::PrepareRestore(SequenceId sequence, Position target) {
  KVCACHE_RETURN_IF_ERROR(parts_.attention.PrepareRestore(sequence, 0).status());
  Position tokens = parts_.states.Newest(sequence, target);
  while (tokens > 0 && !parts_.attention.CanResume(sequence, tokens)) {
    tokens = parts_.states.Newest(sequence, tokens - 1);
  }
  parts_.prepared[Index(sequence)] = tokens;
  return tokens;
}

bool RecurrentCacheImpl::Truncates(SequenceId sequence, Position end) const {
  const StatePoint& live = parts_.states.live(sequence);
  return end >= parts_.length(sequence) && (!live.known() || end >= live.tokens);
}

Status RecurrentCacheImpl::CheckRemove(SequenceId sequence, Position begin, Position end) const {
  KVCACHE_RETURN_IF_ERROR(parts_.attention.CheckRemove(sequence, begin, end));
  const StatePoint& live = parts_.states.live(sequence);
  const Position length = live.known() ? live.tokens : parts_.length(sequence);
  if (!Truncates(sequence, end) || begin == 0 || begin >= length ||
      parts_.prepared[Index(sequence)] == begin) {
    return Status::Ok();
  }
  return Unsupported(StrCat("sequence ", Index(sequence), " cannot go back from ", length,
                            " tokens to ", begin,
                            "; call PrepareRestore first and use the length that it returns"));
}

Status RecurrentCacheImpl::Remove(SequenceId sequence, Position begin, Position end) {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(sequence, begin, end));
  const bool truncates = Truncates(sequence, end);
  const Position length = parts_.length(sequence);
  if (begin < end && end < length) parts_.captures.Cancel(sequence);
  Status status = parts_.attention.Remove(sequence, begin, end);
  pass_.EndStates();
  if (end >= length) parts_.captures.Truncate(sequence, begin);
  if (truncates) {
    if (begin == 0 || parts_.prepared[Index(sequence)] == begin)
      parts_.states.GoBack(sequence, begin);
  } else if (begin < end) {
    parts_.states.RemoveMiddle(sequence, begin, end);
  }
  parts_.Unprepare(sequence);
  return status;
}

Status RecurrentCacheImpl::EvictWindow(SequenceId sequence) {
  KVCACHE_RETURN_IF_ERROR(parts_.attention.EvictWindow(sequence));
  pass_.EndStates();
  parts_.Unprepare(sequence);
  return Status::Ok();
}

std::unique_ptr<RecurrentCache> MakeRecurrentCache(RecurrentOptions options) {
  return std::make_unique<RecurrentCacheImpl>(std::move(options));
}

}  // namespace kvcache
