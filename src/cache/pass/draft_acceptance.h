// Plans and moves the accepted drafts of a pass, so that they have the cells that they would have
// if they alone had been the batch.
//
//   cells    8a 8b 9a 9b 9c 10a .      after accepting 9c:     8a 9c . . . . .
//
// Thread safety: none. Only Reset allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/pass/forward_pass.h"
#include "kvcache/kv_backend.h"

namespace kvcache {

class DraftAcceptance {
 public:
  // An accepted draft, and its cell after the move.
  struct Accepted {
    SequenceId sequence{};
    Position position = 0;
    std::int32_t cell = 0;
  };

  // May throw std::bad_alloc.
  void Reset(int max_batch);

  // Plans the moves of the paths that lead to `last`. REQUIRES: Drafts::CheckChosen accepted it.
  void Plan(ForwardPass& pass, const CellTable& cells, std::span<const std::int32_t> last);
  void Clear();
  // The accepted drafts, ascending by position in each sequence.
  std::span<const Accepted> accepted() const { return accepted_; }

  // Moves the bytes of one layer. Reads and writes cells of drafts only. Errors: the backend's.
  Status MoveBytes(KvBackend& backend, const LayerKv& layer) const;

 private:
  void AcceptPath(ForwardPass& pass, const CellTable& cells, std::int32_t last);
  void Move(std::int32_t from, std::int32_t to);

  std::vector<Accepted> accepted_;
  std::vector<CellMove> moves_;
  std::vector<std::size_t> calls_;   // end of each CopyCells call in moves_
  std::vector<std::int32_t> cells_;  // a sequence's drafts, while planning
};

}  // namespace kvcache
