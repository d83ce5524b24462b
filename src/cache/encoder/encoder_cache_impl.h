// The encoder cache's class, for its factory and for tests that inspect it.
//
//   entry      `stride` neighbouring cells for one output, of which `tokens` are used
//   sequence   has an entry or none; forks share an entry, and a Put then takes another one
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/cells/ref_counted_cells.h"
#include "cache/encoder/encoder_snapshot.h"
#include "cache/open_transactions.h"
#include "cache/pass/cache_storage.h"
#include "cache/pass/drafts.h"
#include "cache/snapshot/capture_schedule.h"
#include "cache/two_phase.h"
#include "kvcache/encoder_cache.h"

namespace kvcache {

class EncoderCacheImpl final : public EncoderCache,
                               public TwoPhaseCache,
                               public TwoPhaseSnapshots,
                               public TwoPhaseTransactions,
                               public CacheMemory {
 public:
  explicit EncoderCacheImpl(const EncoderOptions& encoder)
      : EncoderCache({.snapshots = this, .transactions = this, .memory = this}),
        encoder_(encoder) {}

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
  const Visibility& Visible() const override { return visibility_; }
  Position Length(SequenceId sequence) const override;
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
  std::int64_t UsedBytes() const override { return AllocatedBytes() + SnapshotBytes(); }
  std::int64_t ResidentBytes() const override { return UsedBytes() + SpareBytes(); }
  std::int64_t FreeCells() const override { return std::numeric_limits<std::int64_t>::max(); }
  std::int64_t GrowthOf(std::span<const SequenceLength> /*more*/, int /*captures*/,
                        int /*rounds*/) const override {
    return 0;
  }
  Status ReleaseFreeMemory() override { return Status::Ok(); }

  Status SetSequence(SequenceId sequence) override;
  bool EncoderCached(SequenceId sequence) const override;
  Status CheckOutput(const Snapshot& snapshot, std::int32_t tokens,
                     std::span<const KvShape> layers) const override;

  const RefCountedCells& entries() const { return entries_; }

 private:
  static constexpr std::int32_t kNone = EncoderOutput::kNone;

  using Output = EncoderOutput;
  // A sequence of the batch, and the token that a new output belongs to.
  struct Member {
    SequenceId sequence{};
    Position position = 0;  // of its newest item, or its lowest one
    bool has_item = false;
    bool put = false;
  };

  void AddMember(SequenceId sequence, Position position);
  void NoteItems(const Batch& batch);
  void DescribeVisibility();
  void Describe(std::size_t member);
  Result<CellRun> CellsForPut(Member& member, std::int32_t tokens);
  CellRun CellsOf(const Output& output) const;
  void Drop(SequenceId sequence);
  std::string Identity() const;  // the first line of the fingerprint
  Result<SnapshotHeader> HeaderOf(const Snapshot& snapshot) const;
  Result<std::unique_ptr<Snapshot>> ImportChecked(std::span<const std::byte> bytes);
  // Returns the sequence's output if it belongs to a token in [begin, end), else one without an entry.
  Output OutputIn(SequenceId sequence, Position begin, Position end) const;
  Result<const EncoderSnapshot*> OwnSnapshot(const Snapshot* snapshot) const;
  Status CaptureBeforePut(const Member& member);
  void ChangeLength(SequenceId sequence, Position length);

  EncoderOptions encoder_;
  CacheStorage storage_;
  std::int32_t stride_ = 0;  // cells of an entry
  RefCountedCells entries_;
  std::vector<Output> outputs_;  // [sequences]

  std::optional<Batch> prepared_;
  ForwardMode prepared_mode_ = ForwardMode::kCompute;
  ForwardMode mode_ = ForwardMode::kCompute;
  bool active_ = false;
  Drafts drafts_;
  std::vector<Member> members_;                 // the pass's sequences
  std::vector<std::int32_t> member_of_;         // [sequences]: index into members_, or kNone
  std::size_t current_ = 0;                     // index into members_, selected by SetSequence
  std::vector<Position> positions_;             // [batch]
  std::vector<std::int32_t> history_of_query_;  // [batch]
  std::vector<HistoryRun> runs_;                // [members]
  std::vector<std::span<const HistoryRun>> histories_;
  std::vector<std::uint8_t> bidirectional_;  // [batch]: all
  Visibility visibility_;

  struct Restoring {
    SequenceId sequence{};
    Position begin = 0;  // the sequence goes back to here first
    Position target = 0;
    bool with_snapshot = false;
    bool reuses = false;  // cells of the sequence: it was dropped
    Output output{};      // with an entry that belongs to the restore
  };
  std::shared_ptr<EncoderSnapshotPool> pool_;
  std::vector<Position> lengths_;  // [sequences]: the last position seen + 1
  // An output is captured when it is replaced, or by TakeCaptures.
  CaptureSchedule<EncoderSnapshot> captures_;
  std::vector<std::pair<SequenceId, Position>> accepted_;  // lengths after FinishAccept
  Restoring restoring_;
  OpenTransactions transactions_;
};

}  // namespace kvcache
