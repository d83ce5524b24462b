// The sequences of a recurrent cache: how far their states let them go back, and their changes outside of
// passes. Every change ends the pass.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include "cache/recurrent/recurrent_parts.h"
#include "cache/recurrent/recurrent_pass.h"

namespace kvcache {

class RecurrentSequences {
 public:
  // Both must outlive this.
  RecurrentSequences(RecurrentParts& parts, RecurrentPass& pass) : parts_(parts), pass_(pass) {}

  // As in Cache.
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length);
  bool CanResume(SequenceId sequence, Position position) const;
  Result<Position> PrepareRestore(SequenceId sequence, Position target);
  Status Remove(SequenceId sequence, Position begin, Position end);
  Status CheckRemove(SequenceId sequence, Position begin, Position end) const;
  Status EvictWindow(SequenceId sequence);

 private:
  // Returns whether neither tokens nor state reach beyond `end`.
  bool Truncates(SequenceId sequence, Position end) const;

  RecurrentParts& parts_;
  RecurrentPass& pass_;
};

}  // namespace kvcache
