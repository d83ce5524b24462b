// The sequences of an encoder cache: their lengths and outputs, how far they can go back, and their
// changes outside of passes. Every change ends the pass.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include "cache/encoder/encoder_parts.h"
#include "cache/encoder/encoder_pass.h"

namespace kvcache {

class EncoderSequences {
 public:
  // Both must outlive this.
  EncoderSequences(EncoderParts& parts, EncoderPass& pass) : parts_(parts), pass_(pass) {}

  // As in EncoderCache.
  Position Length(SequenceId id) const;
  bool HasOutput(SequenceId id) const;
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length);
  bool CanResume(SequenceId id, Position position) const;
  Result<Position> PrepareRestore(SequenceId id, Position target);
  Status Remove(SequenceId id, Position begin, Position end);
  Status CheckRemove(SequenceId id, Position begin, Position end) const;
  Status EvictWindow(SequenceId id);

  // Shortens the sequence to `length` tokens and takes captures above it back. The output stays.
  void ChangeLength(SequenceId id, Position length);
  // Gives the sequence an output, whose entry it takes over, and `length` tokens. An output without an
  // entry leaves that of the sequence.
  void Replace(SequenceId id, const EncoderOutput& output, Position length);

 private:
  EncoderParts& parts_;
  EncoderPass& pass_;
};

}  // namespace kvcache
