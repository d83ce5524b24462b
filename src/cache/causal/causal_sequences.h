// The sequences of a causal cache: their lengths, how far they can go back, and their changes outside of
// passes. Every change ends the pass.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/causal/causal_parts.h"
#include "cache/causal/causal_pass.h"

namespace kvcache {

class CausalSequences {
 public:
  // Both must outlive this.
  CausalSequences(CausalParts& parts, CausalPass& pass) : parts_(parts), pass_(pass) {}
  // May throw std::bad_alloc.
  void Reset(int sequences) { starts_late_.assign(sequences, 0); }

  // As in Cache.
  Position Length(SequenceId id) const;
  Status FindCells(SequenceId id, Position begin, Position end,
                   std::vector<HistoryRun>& runs) const;
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length);
  bool CanResume(SequenceId id, Position position) const;
  Result<Position> PrepareRestore(SequenceId id, Position target);
  Status Remove(SequenceId id, Position begin, Position end);
  Status CheckRemove(SequenceId id, Position begin, Position end) const;
  Status EvictWindow(SequenceId id);

  // Drops the tokens from `length` on, and the captures above it.
  void Truncate(SequenceId id, Position length);
  // Replaces the tokens from `begin` on by those of `hold`, and empties it.
  void Replace(SequenceId id, Position begin, CellHold& hold);

 private:
  bool RemovesMiddle(SequenceId id, Position begin, Position end) const;
  Status RemoveMiddle(SequenceId id, Position begin, Position end);

  CausalParts& parts_;
  CausalPass& pass_;
  // [sequences]: the tokens before the first one are gone, although the cache evicts none: a window
  // was restored.
  std::vector<std::uint8_t> starts_late_;
};

}  // namespace kvcache
