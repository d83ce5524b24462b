// What a cache with a window keeps, and lets go of before a pass claims cells.
//
// Of a sequence in the batch go the positions below its lowest one there - memory; of any other,
// below its length - memory. Only sequences that were written or copied to since can have such
// positions, so a list of those is all that is looked at.
//
// Thread safety: none. Only Reset allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cell_table.h"
#include "cache/forward_pass.h"
#include "kvcache/causal_cache.h"

namespace kvcache {

class WindowEviction {
 public:
  // `causal` with the memory that it comes to for these sizes: at least one more than the window
  // where there are several sequences, 0 where everything is kept. Errors: kInvalidArgument for
  // options that contradict each other.
  static Result<std::int32_t> RetainedTokens(const CausalOptions& causal,
                                             const CacheOptions& options);

  // memory 0: everything is kept. May throw std::bad_alloc.
  void Reset(std::int32_t retained_tokens, int sequences, int max_batch);

  bool keeps_everything() const { return retained_tokens_ == 0; }

  // What is to go before these tokens (ascending by sequence and position) are claimed; valid
  // until the next call. Nothing changes.
  std::span<const Eviction> Plan(const CellTable& cells,
                                 std::span<const ForwardPass::Token> tokens);
  // Do all sequences of the last plan's batch go on at their ends? Then the batch fits: after the
  // eviction no sequence keeps more than the memory, and there are cells for that and a batch.
  bool plan_fits() const { return plan_fits_; }
  // Lets go of what was last planned.
  void Evict(CellTable& cells);

  // The sequence may hold more than is to be kept.
  void MarkGrown(SequenceId id);

 private:
  void PlanOne(const CellTable& cells, SequenceId id, std::int64_t begin);

  std::int32_t retained_tokens_ = 0;
  std::vector<Eviction> planned_;
  bool plan_fits_ = false;
  std::vector<SequenceId> in_batch_;       // of the last plan
  std::vector<std::uint8_t> planned_for_;  // [sequences]: in in_batch_?
  std::vector<SequenceId> grown_;
  std::vector<std::uint8_t> has_grown_;  // [sequences]: in grown_?
};

}  // namespace kvcache
