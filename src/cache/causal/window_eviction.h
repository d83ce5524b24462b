// Evicts the tokens that no query of a windowed cache can need, before a pass claims cells.
//
// Let p be the sequence's lowest position in the batch. Positions up to p - retained_tokens are
// evicted. For a sequence outside the batch, p is its length. Only sequences that were written or
// copied to since the last eviction can have such positions, so a list of those is all that is
// visited. Nothing of a sequence in a transaction is evicted.
//
// What a query sees is VisibleRange (kvcache/visibility.h), not this.
//
// Thread safety: none. Only Reset allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cells/cell_table.h"
#include "cache/open_transactions.h"
#include "cache/pass/forward_pass.h"
#include "kvcache/causal_cache.h"

namespace kvcache {

class WindowEviction {
 public:
  // Returns the tokens that a sequence retains, the next one included: causal.retained_tokens or, if
  // that is 0, the window (models set it: model/graph/layer_caches.h). It is at least window + 1 if
  // there are several sequences, and 0 if nothing is evicted. Errors: kInvalidArgument for options
  // that contradict each other.
  static Result<std::int32_t> RetainedTokens(const CausalOptions& causal,
                                             const CacheOptions& options);

  // retained_tokens 0: nothing is evicted. May throw std::bad_alloc.
  void Reset(std::int32_t retained_tokens, int sequences, int max_batch);

  bool keeps_everything() const { return retained_tokens_ == 0; }

  // Returns the evictions for a batch of these tokens (ascending by sequence and position), without
  // applying them. Valid until the next call.
  std::span<const Eviction> Plan(const CellTable& cells, std::span<const ForwardPass::Token> tokens,
                                 const OpenTransactions& transactions);
  // Returns whether all sequences of the last planned batch continue at their ends. The batch then
  // fits: after the eviction each sequence has fewer than retained_tokens, and the table has cells
  // for max_sequences × retained_tokens + max_batch.
  bool plan_fits() const { return plan_fits_; }
  // Returns the position below which the last plan evicts a sequence of its batch; 0: nothing.
  Position PlannedFor(SequenceId id) const;
  // Applies the last plan.
  void Evict(CellTable& cells);

  // Evicts what a batch that continues the sequence at its end would evict of it.
  void EvictOne(CellTable& cells, SequenceId id) const;

  // Notes that the sequence may hold tokens that the next eviction drops.
  void MarkGrown(SequenceId id);

 private:
  // Returns the first position that is kept if the sequence continues at `position`.
  std::int64_t FirstKept(Position position) const {
    return std::int64_t{position} - retained_tokens_ + 1;
  }
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
