#include "cache/encoder/encoder_sequences.h"

#include <algorithm>

namespace kvcache {

bool EncoderSequences::HasOutput(SequenceId id) const {
  return parts_.CheckKnown(id).ok() && parts_.outputs[Index(id)].entry != EncoderOutput::kNone;
}

Position EncoderSequences::Length(SequenceId id) const {
  return parts_.CheckKnown(id).ok() ? parts_.lengths[Index(id)] : 0;
}

Status EncoderSequences::CopyPrefix(SequenceId src, SequenceId dst, Position length) {
  KVCACHE_RETURN_IF_ERROR(parts_.CheckKnown(src));
  KVCACHE_RETURN_IF_ERROR(parts_.CheckKnown(dst));
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

bool EncoderSequences::CanResume(SequenceId id, Position position) const {
  if (!parts_.CheckKnown(id).ok() || position < 0) {
    return false;
  }
  const EncoderOutput& output = parts_.outputs[Index(id)];
  return position <= output.first_gone ||
         (output.entry != EncoderOutput::kNone && position > output.position);
}

Result<Position> EncoderSequences::PrepareRestore(SequenceId id, Position target) {
  KVCACHE_RETURN_IF_ERROR(parts_.CheckKnown(id));
  if (target <= 0) return 0;
  return CanResume(id, target) ? target : parts_.outputs[Index(id)].first_gone;
}

Status EncoderSequences::CheckRemove(SequenceId id, Position begin, Position end) const {
  KVCACHE_RETURN_IF_ERROR(parts_.CheckKnown(id));
  KVCACHE_RETURN_IF_ERROR(CheckRange(begin, end));
  return parts_.transactions.CheckChange(id);
}

Status EncoderSequences::Remove(SequenceId id, Position begin, Position end) {
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

Status EncoderSequences::EvictWindow(SequenceId id) {
  KVCACHE_RETURN_IF_ERROR(CheckRemove(id, 0, kEndOfSequence));
  pass_.End();
  return Status::Ok();
}

// A capture whose range is cut or that ends above the new length is taken back.
void EncoderSequences::ChangeLength(SequenceId id, Position length) {
  parts_.lengths[Index(id)] = std::min(parts_.lengths[Index(id)], length);
  parts_.captures.Truncate(id, length);
}

void EncoderSequences::Replace(SequenceId id, const EncoderOutput& output, Position length) {
  if (output.entry != EncoderOutput::kNone) {
    parts_.Drop(id);
    parts_.outputs[Index(id)] = output;
  }
  parts_.lengths[Index(id)] = length;
  parts_.captures.Cancel(id);
}

}  // namespace kvcache
