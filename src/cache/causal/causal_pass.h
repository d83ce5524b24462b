// The pass of a causal cache: the batch in progress, the one that is prepared, the acceptance of its
// drafts, and the mask of Get.
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <span>

#include "cache/causal/causal_parts.h"
#include "cache/pass/draft_acceptance.h"
#include "cache/pass/forward_pass.h"
#include "cache/pass/history_mask.h"

namespace kvcache {

class CausalPass {
 public:
  // `parts` must outlive the pass.
  explicit CausalPass(CausalParts& parts) : parts_(parts) {}
  // May throw std::bad_alloc.
  void Reset(int max_batch);
  void Clear();

  // As in TwoPhaseCache.
  Status Prepare(const Batch& batch, ForwardMode mode);
  void Begin();
  Status PrepareAccept(std::span<const std::int32_t> last);
  void FinishAccept();
  // Drops what is prepared and planned. The pass in progress continues.
  void Unprepare();
  // Ends the pass in progress and drops its drafts.
  void End();
  // Lets the pass find its histories again after runs have moved to other memory.
  void Rebind() { pass_.Rebind(parts_.cells); }

  // As in Cache.
  Status SetCausal(std::span<const std::int32_t> except);
  Status Put(const TensorView& k, const TensorView& v);
  Result<DenseKv> Get();
  const Visibility& Visible() const { return pass_.visibility(); }

 private:
  enum class Prepared : std::uint8_t { kNothing, kCompute, kReserve };
  using Tokens = std::span<const ForwardPass::Token>;

  Status PrepareCompute(const Batch& batch);
  // Asks memory for what the pass looks at of its sequences.
  void PrefetchCells(Tokens tokens) const;
  Status CheckRoots(const Batch& batch) const;
  Status CheckPositions(Tokens tokens) const;
  Status CheckFreeCells(std::int32_t size, std::span<const Eviction> evictions);
  Status PlanCaptures(Tokens tokens);
  Status PlanCaptures(std::span<const std::int32_t> accepted);
  Status ReserveRuns(Tokens tokens);
  Status MoveAccepted();
  Status EnsureMask();

  CausalParts& parts_;
  ForwardPass pass_;
  DraftAcceptance acceptance_;
  HistoryMask mask_;
  CellRun masked_cells_;  // the cells of mask_; length 0: not built in this pass
  Prepared prepared_ = Prepared::kNothing;
  std::int32_t prepared_size_ = 0;
};

}  // namespace kvcache
