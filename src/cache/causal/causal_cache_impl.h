// The causal cache's class, for its factory, for kinds that contain one, and for tests that inspect
// it.
//
//   CausalCache ── CacheStorage     configuration, and the layers' bytes
//               ├─ CellTable        the cells of each sequence
//               ├─ ForwardPass      the batch in progress
//               ├─ DraftAcceptance  the drafts that AcceptDrafts keeps
//               ├─ WindowEviction   the tokens that a window evicts
//               ├─ SnapshotPool     the snapshots, and the cells that they hold
//               ├─ Captures         the snapshots that passes take
//               ├─ OpenTransactions the sequences in a transaction
//               └─ HistoryMask      the mask of Get
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/causal/causal_snapshot.h"
#include "cache/causal/window_eviction.h"
#include "cache/cells/cell_table.h"
#include "cache/open_transactions.h"
#include "cache/pass/cache_storage.h"
#include "cache/pass/draft_acceptance.h"
#include "cache/pass/forward_pass.h"
#include "cache/pass/history_mask.h"
#include "cache/snapshot/captures.h"
#include "cache/snapshot/snapshot_bytes.h"
#include "cache/two_phase.h"
#include "kvcache/causal_cache.h"

namespace kvcache {

// Layers whose memory goes back to the system have a multiple of this: whole pages of every shape.
inline constexpr int kReleasingCells = 2048;

class CausalCache final : public Cache,
                          public TwoPhaseCache,
                          public TwoPhaseSnapshots,
                          public TwoPhaseTransactions,
                          public CacheMemory {
 public:
  explicit CausalCache(CausalOptions causal)
      : Cache({.snapshots = this, .transactions = this, .memory = this}),
        causal_(std::move(causal)) {}

  Status Init(KvBackend& backend, const CacheOptions& options) override;
  void Close() override;
  Status StartForward(const Batch& batch, ForwardMode mode) override {
    return StartInHalves(*this, batch, mode);
  }
  Status PrepareForward(const Batch& batch, ForwardMode mode) override;
  void BeginForward() override;
  void EndPass() override;
  void SetLayer(int layer) override { storage_.SetLayer(layer); }
  Status SetCausal(std::span<const std::int32_t> except) override;
  Status AcceptDrafts(std::span<const std::int32_t> last) override {
    return AcceptInHalves(*this, last);
  }
  Status PrepareAccept(std::span<const std::int32_t> last) override;
  void FinishAccept() override;
  Status Put(const TensorView& k, const TensorView& v) override;
  Result<DenseKv> Get() override;
  Result<LayerKv> Storage() override { return storage_.Storage(); }
  const Visibility& Visible() const override { return pass_.visibility(); }
  Position Length(SequenceId sequence) const override;
  Status FindCells(SequenceId sequence, Position begin, Position end,
                   std::vector<HistoryRun>& runs) const override;
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length) override;
  bool CanResume(SequenceId sequence, Position position) const override;
  Result<Position> PrepareRestore(SequenceId sequence, Position target) override;
  Status Remove(SequenceId sequence, Position begin, Position end) override;
  Status CheckRemove(SequenceId sequence, Position begin, Position end) const override;
  Status EvictWindow(SequenceId sequence) override;
  Status Compact() override;

  Result<std::unique_ptr<Snapshot>> TakeSnapshot(SequenceId sequence, Position begin,
                                                 Position end) override;
  Status ScheduleCaptures(SequenceId sequence, Position begin,
                          std::span<const Position> lengths) override;
  Result<std::vector<std::unique_ptr<Snapshot>>> TakeCaptures(SequenceId sequence) override;
  void CancelCaptures(SequenceId sequence) override;
  Status CheckRestore(SequenceId sequence, const Snapshot* snapshot,
                      Position target) const override;
  Status BeginRestore(SequenceId sequence, const Snapshot* snapshot, Position target) override;
  void FinishRestore() override;
  bool AbandonRestore() override;
  Result<std::unique_ptr<Snapshot>> MergeSnapshots(std::unique_ptr<Snapshot>& parent,
                                                   std::unique_ptr<Snapshot>& child) override;
  Status PrepareMerge(Snapshot& parent, Snapshot& child) override;
  Result<SnapshotParts> SplitSnapshot(std::unique_ptr<Snapshot>& snapshot,
                                      Position position) override;
  Status Materialize(Snapshot& snapshot) override;
  Result<std::string> Fingerprint() const override;
  Result<std::int64_t> ExportSize(const Snapshot& snapshot) const override;
  Status Export(const Snapshot& snapshot, std::span<std::byte> bytes) override;
  Result<std::unique_ptr<Snapshot>> Import(std::span<const std::byte> bytes) override;
  void SetMaterializeHook(const MaterializeHook& hook) override;
  std::int64_t SnapshotBytes() const override { return pool_ == nullptr ? 0 : pool_->bytes(); }
  std::int64_t SpareBytes() const override {
    return pool_ == nullptr ? 0 : pool_->memory().spare_bytes();
  }
  void LimitSpareBytes(std::int64_t max_bytes) override {
    if (pool_ != nullptr) pool_->memory().Limit(max_bytes);
  }

  Status PrepareBegin(std::span<const SequenceLength> members, Position max_tokens) override;
  void FinishBegin(std::span<const SequenceLength> members, Position max_tokens) override;
  Status CheckCommit(std::span<const SequenceLength> kept) const override;
  Status PrepareCommit(std::span<const SequenceLength> /*kept*/) override { return Status::Ok(); }
  void FinishCommit(std::span<const SequenceLength> kept) override;
  void RollBack(std::span<const SequenceLength> members) override;

  std::int64_t AllocatedBytes() const override { return storage_.layers().allocated_bytes(); }
  std::int64_t UsedBytes() const override;
  std::int64_t FreeCells() const override;
  std::int64_t ResidentBytes() const override;
  std::int64_t GrowthOf(std::span<const SequenceLength> more, int captures,
                        int rounds) const override;
  Status ReleaseFreeMemory() override;

  const CellTable& cells() const { return cells_; }
  const OpenTransactions& open_transactions() const { return transactions_; }
  // Returns the error that Init would return before it allocates.
  Status CheckInit(const KvBackend& backend, const CacheOptions& options) const;

 private:
  enum class Prepared : std::uint8_t { kNothing, kCompute, kReserve };

  Status CheckRoots(const Batch& batch) const;
  Status CheckPositions(std::span<const ForwardPass::Token> tokens) const;
  Status CheckFreeCells(std::int32_t size, std::span<const Eviction> evictions);
  Status PlanCaptures(std::span<const ForwardPass::Token> tokens);
  void Unprepare();
  Status ReserveRuns(std::span<const ForwardPass::Token> tokens);
  bool RemovesMiddle(SequenceId sequence, Position begin, Position end) const;
  Status RemoveMiddle(SequenceId sequence, Position begin, Position end);
  Status EnsureMask();
  std::string Identity() const;  // the first line of the fingerprint
  Result<SnapshotHeader> HeaderOf(const Snapshot& snapshot) const;
  Result<std::unique_ptr<Snapshot>> ImportChecked(std::span<const std::byte> bytes);
  Result<const CausalSnapshot*> OwnSnapshot(const Snapshot* snapshot) const;
  Status CheckRoomFor(SequenceId sequence, const CausalSnapshot& snapshot, Position target) const;
  void ChangeLength(SequenceId sequence, Position length);
  void Truncate(SequenceId sequence, Position length);
  std::int64_t BlockBytes() const;

  CausalOptions causal_;
  CacheStorage storage_;
  std::string sizes_text_;  // for messages
  CellTable cells_;
  ForwardPass pass_;
  DraftAcceptance acceptance_;
  WindowEviction eviction_;
  HistoryMask mask_;
  CellRun masked_cells_;  // the cells of mask_; length 0: not built in this pass
  Prepared prepared_ = Prepared::kNothing;
  std::int32_t prepared_size_ = 0;

  std::shared_ptr<SnapshotPool> pool_;
  Captures captures_;
  OpenTransactions transactions_;
  bool evicts_first_ = false;  // the transaction that was prepared needs cells that a window evicts
  // [sequences]: the tokens before the first one are gone, although the cache evicts none: a window
  // was restored.
  std::vector<std::uint8_t> starts_late_;
  struct Restoring {
    SequenceId sequence{};
    Position begin = 0;  // positions from here on are replaced
    Position target = 0;
    bool with_snapshot = false;
    bool reuses = false;  // cells of the sequence: it was dropped
  };
  Restoring restoring_;
  CellHold staged_;  // what the sequence holds from restoring_.begin on
};

}  // namespace kvcache
