// One forward pass: the batch ordered by sequence and position, the cells of its tokens, and the
// visibility of its queries. In a pass of drafts every path is a history.
//
// Thread safety: none. Only Reset and PrepareDrafts allocate. Order and PrepareDrafts do not change
// the pass in progress, so that a batch can be refused without ending it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cells/cell_table.h"
#include "cache/pass/drafts.h"
#include "kvcache/cache.h"
#include "kvcache/visibility.h"

namespace kvcache {

class ForwardPass {
 public:
  // A token of the batch, with its batch index.
  struct Token {
    SequenceId sequence{};
    Position position = 0;
    std::int32_t index = 0;
  };

  // The limits of a query's visibility, as in Visibility.
  struct AttentionSpan {
    std::int32_t window = 0;
    std::int32_t chunk = 0;
  };

  // May throw std::bad_alloc.
  void Reset(int max_batch, const AttentionSpan& span);

  // Returns the batch's tokens, ascending by sequence and position; valid until the next call.
  // REQUIRES: batch.size() <= max_batch.
  std::span<const Token> Order(const Batch& batch);

  // Reserves memory for the paths of a batch of drafts. Errors: kOutOfMemory.
  Status PrepareDrafts(const Batch& batch, const CellTable& cells);

  // Begins the pass of the batch that was last ordered and prepared: claims its cells in `cells`
  // and describes the histories there. REQUIRES: the requirements of CellTable::Claim for each
  // token.
  void Begin(CellTable& cells);
  // Begins a reserving pass of `size` queries. It claims no cell, and each query sees all of them.
  void BeginReserve(std::int32_t size, const CellTable& cells);
  void End();
  // Re-points the history spans after run lists were reallocated.
  void Rebind(const CellTable& cells);

  // Makes these queries bidirectional and all others causal. REQUIRES: indices of the batch.
  void SetNonCausal(std::span<const std::int32_t> queries);

  bool active() const { return active_; }
  bool reserving() const { return reserving_; }
  std::int32_t size() const { return size_; }

  // The batch's cells in the order of the batch; empty in a reserving pass.
  std::span<const CellRun> cells() const { return cell_runs_; }
  std::int32_t cell_of(std::int32_t token) const { return cell_of_[token]; }
  // The drafts of this pass; empty in a pass without drafts.
  Drafts& drafts() { return drafts_; }
  const Visibility& visibility() const { return visibility_; }

 private:
  void ClaimCells(CellTable& cells);
  void DescribeCells();
  void DescribeHistories(const CellTable& cells);
  bool IsCopied(std::span<const HistoryRun> history) const {
    return !only_runs_.empty() && history.data() >= only_runs_.data() &&
           history.data() < only_runs_.data() + only_runs_.size();
  }
  void DescribePaths(const CellTable& cells);
  void DescribeVisibility();

  std::vector<Token> ordered_;
  std::vector<std::int32_t> cell_of_;  // [batch]
  std::vector<CellRun> cell_runs_;
  std::vector<Position> positions_;             // [batch]
  std::vector<std::int32_t> history_of_query_;  // [batch]
  std::vector<std::span<const HistoryRun>> histories_;
  std::vector<HistoryRun>
      only_runs_;  // of histories with one run, side by side for the kernels of all layers
  std::vector<SequenceId> history_sequences_;  // [histories]; in a pass without drafts
  std::vector<std::uint8_t> bidirectional_;    // [batch]
  Drafts drafts_;
  Drafts next_drafts_;                 // of the batch that was last prepared
  std::vector<HistoryRun> path_runs_;  // of all paths, one after another
  std::vector<HistoryRun> next_path_runs_;
  AttentionSpan span_;
  HistoryRun everything_;  // the only run of a reserving pass
  Visibility visibility_;
  std::int32_t size_ = 0;
  bool active_ = false;
  bool reserving_ = false;
};

}  // namespace kvcache
