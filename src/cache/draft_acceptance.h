// Which drafts of a pass their sequences keep, and where these move, so that a path that was
// chosen lies as it would if it alone had been the batch.
//
//   cells    8a 8b 9a 9b 9c 10a .        the path to 9c is kept     8a 9c . . . . .
//
// Thread safety: none. Only Reset allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/forward_pass.h"
#include "kvcache/kv_backend.h"

namespace kvcache {

class DraftAcceptance {
 public:
  // A draft that its sequence keeps, and its cell once bytes have moved.
  struct Accepted {
    SequenceId sequence{};
    Position position = 0;
    std::int32_t cell = 0;
  };

  // May throw std::bad_alloc.
  void Reset(int max_batch);

  // The paths that lead to `last`. REQUIRES: Drafts::CheckChosen accepted it.
  void Plan(ForwardPass& pass, const CellTable& cells, std::span<const std::int32_t> last);
  void Clear();
  // Ascending by position in each sequence.
  std::span<const Accepted> accepted() const { return accepted_; }

  // Moves the bytes of one layer; of drafts alone.
  Status MoveBytes(KvBackend& backend, const LayerKv& layer) const;

 private:
  void AcceptPath(ForwardPass& pass, const CellTable& cells, std::int32_t last);
  void Move(std::int32_t from, std::int32_t to);

  std::vector<Accepted> accepted_;
  std::vector<CellMove> moves_;
  std::vector<std::size_t> calls_;   // where in moves_ each call ends
  std::vector<std::int32_t> cells_;  // scratch: of a sequence's drafts
};

}  // namespace kvcache
