// One forward pass: the batch in order of sequence and position, where its tokens went, and
// what its queries see. Of a pass of drafts every path is a history of its own.
//
// Thread safety: none. Only Reset and PrepareDrafts allocate. Order and PrepareDrafts leave the
// pass in progress alone, so that a batch can be refused without ending it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cell_table.h"
#include "cache/drafts.h"
#include "kvcache/cache.h"

namespace kvcache {

class ForwardPass {
 public:
  // A token of the batch; `index` is its place there.
  struct Token {
    SequenceId sequence{};
    Position position = 0;
    std::int32_t index = 0;
  };

  // How far a query sees, as in Visibility.
  struct AttentionSpan {
    std::int32_t window = 0;
    std::int32_t chunk = 0;
  };

  // May throw std::bad_alloc.
  void Reset(int max_batch, const AttentionSpan& span);

  // The batch's tokens, ascending by sequence and position; valid until the next call.
  // REQUIRES: batch.size() <= max_batch.
  std::span<const Token> Order(const Batch& batch);

  // Makes room for the paths of the batch, if it is one of drafts. Errors: kOutOfMemory.
  Status PrepareDrafts(const Batch& batch, const CellTable& cells);

  // The pass of the batch last ordered and prepared: claims its cells in `cells`, and sees its
  // sequences' histories there. REQUIRES: all that CellTable::Claim does, for each token.
  void Begin(CellTable& cells);
  // A pass of `size` queries that see every cell of `cells`, and claims none.
  void BeginReserve(std::int32_t size, const CellTable& cells);
  void End();
  // The pass goes on although lists of runs have moved to other memory.
  void Rebind(const CellTable& cells);

  // These queries see later positions too, all others do not. REQUIRES: indices of the batch.
  void SetNonCausal(std::span<const std::int32_t> queries);

  bool active() const { return active_; }
  bool reserving() const { return reserving_; }
  std::int32_t size() const { return size_; }

  // The batch's cells, token 0 of the batch first; empty when reserving.
  std::span<const CellRun> cells() const { return cell_runs_; }
  std::int32_t cell_of(std::int32_t token) const { return cell_of_[token]; }
  // Of this pass; empty in others.
  Drafts& drafts() { return drafts_; }
  const Visibility& visibility() const { return visibility_; }

 private:
  void ClaimCells(CellTable& cells);
  void DescribeCells();
  void DescribeHistories(const CellTable& cells);
  void DescribePaths(const CellTable& cells);
  void DescribeVisibility();

  std::vector<Token> ordered_;
  std::vector<std::int32_t> cell_of_;  // [batch]
  std::vector<CellRun> cell_runs_;
  std::vector<Position> positions_;             // [batch]
  std::vector<std::int32_t> history_of_query_;  // [batch]
  std::vector<std::span<const HistoryRun>> histories_;
  std::vector<SequenceId> history_sequences_;  // of a pass without drafts
  std::vector<std::uint8_t> bidirectional_;    // [batch]
  Drafts drafts_;
  Drafts next_drafts_;                 // of the batch last prepared
  std::vector<HistoryRun> path_runs_;  // of all paths, one after another
  std::vector<HistoryRun> next_path_runs_;
  AttentionSpan span_;
  HistoryRun everything_;  // the one run of a reserving pass
  Visibility visibility_;
  std::int32_t size_ = 0;
  bool active_ = false;
  bool reserving_ = false;
};

}  // namespace kvcache
