#include "kvcache/encoder_cache.h"

#include <algorithm>
#include <memory>

#include "base/errors.h"
#include "cache/encoder/encoder_cache_impl.h"

namespace kvcache {

Status EncoderCacheImpl::Init(KvBackend& backend, const CacheOptions& options) {
  KVCACHE_RETURN_IF_ERROR(parts_.CheckInit(backend, options));
  KVCACHE_RETURN_IF_ERROR(
      Guarded([&] { return "no memory for the metadata of " + SizesText(options); },
              [&] {
                parts_.Reset(options);
                pass_.Reset(options);
              }));
  parts_.Open(backend, options);
  return Status::Ok();
}

void EncoderCacheImpl::Close() {
  pass_.End();
  parts_.Close();
}

bool EncoderCacheImpl::EncoderCached(SequenceId id) const {
  return parts_.storage.CheckKnown(id).ok() &&
         parts_.outputs[Index(id)].entry != EncoderOutput::kNone;
}

Position EncoderCacheImpl::Length(SequenceId id) const {
  return parts_.storage.CheckKnown(id).ok() ? parts_.lengths[Index(id)] : 0;
}

Status EncoderCacheImpl::CopyPrefix(SequenceId src, SequenceId dst, Position length) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(src));
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(dst));
  KVCACHE_RETURN_IF_ERROR(CheckPrefix(length));
  KVCACHE_RETURN_IF_ERROR(parts_.transactions.CheckChange(dst));
  pass_.End();
  const EncoderOutput& source = parts_.outputs[Index(src)];
  const bool shares = source.entry != EncoderOutput::kNone && source.position < length;
  const Position first_gone = source.first_gone < length ? source.first_gone : kEndOfSequence;
  if (src != dst) {
    parts_.Drop(dst);
    if (shares) {
      parts_.entries.Share(source.entry);
      parts_.outputs[Index(dst)] = source;
    }
  } else if (!shares) {
    parts_.Drop(dst);
  }
  parts_.outputs[Index(dst)].first_gone = first_gone;
  if (src == dst) {
    ChangeLength(dst, length);
  } else {
    parts_.lengths[Index(dst)] = std::min(length, parts_.lengths[Index(src)]);
    parts_.captures.Cancel(dst);
  }
  return Status::Ok();
}

bool EncoderCacheImpl::CanResume(SequenceId id, Position position) const {
  if (!parts_.storage.CheckKnown(id).ok() || position < 0) return false;
  const EncoderOutput& output = parts_.outputs[Index(id)];
  return position <= output.first_gone ||
         (output.entry != EncoderOutput::kNone && position > output.position);
}

Result<Position> EncoderCacheImpl::PrepareRestore(SequenceId id, Position target) {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(id));
  if (target <= 0) return 0;
  return CanResume(id, target) ? target : parts_.outputs[Index(id)].first_gone;
}

Status EncoderCacheImpl::CheckRemove(SequenceId id, Position begin, Position end) const {
  KVCACHE_RETURN_IF_ERROR(parts_.storage.CheckKnown(id));
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  return parts_.transactions.CheckChange(id);
}

Status EncoderCacheImpl::Remove(SequenceId id, Position begin, Position end) {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(id, begin, end));
  pass_.End();
  if (end >= parts_.lengths[Index(id)]) {
    ChangeLength(id, begin);
  } else if (begin < end) {
    parts_.lengths[Index(id)] -= end - begin;
    parts_.captures.Cancel(id);
  }
  EncoderOutput& output = parts_.outputs[Index(id)];
  if (output.first_gone != kEndOfSequence && output.first_gone >= begin) {
    if (end == kEndOfSequence) {
      output.first_gone = kEndOfSequence;
    } else {
      output.first_gone = std::max(begin, output.first_gone - (end - begin));
    }
  }
  if (output.entry == EncoderOutput::kNone || output.position < begin) return Status::Ok();
  if (output.position < end) {
    parts_.Drop(id);
  } else {
    output.position -= end - begin;
  }
  return Status::Ok();
}

Status EncoderCacheImpl::EvictWindow(SequenceId id) {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(id, 0, kEndOfSequence));
  pass_.End();
  return Status::Ok();
}

// A capture whose range is cut or that ends above the new length is taken back.
void EncoderCacheImpl::ChangeLength(SequenceId id, Position length) {
  parts_.lengths[Index(id)] = std::min(parts_.lengths[Index(id)], length);
  parts_.captures.Truncate(id, length);
}

void EncoderCacheImpl::Replace(SequenceId id, const EncoderOutput& output, Position length) {
  if (output.entry != EncoderOutput::kNone) {
    parts_.Drop(id);
    parts_.outputs[Index(id)] = output;
  }
  parts_.lengths[Index(id)] = length;
  parts_.captures.Cancel(id);
}

void EncoderCacheImpl::KeepTokens(SequenceId id, Position length) {
  if (length < KnownTokens(id)) ChangeLength(id, length);
}

std::unique_ptr<EncoderCache> MakeEncoderCache(const EncoderOptions& options) {
  return std::make_unique<EncoderCacheImpl>(options);
}

}  // namespace kvcache
