// The encoder cache's class, for its factory and for tests that inspect it.
//
//   EncoderCacheImpl ── EncoderParts      what the calls share: storage, entries, outputs, captures
//                    ├─ EncoderPass       the batch in progress, and the outputs that it puts
//                    └─ EncoderSnapshots, EncoderMemory, TruncatingTransactions   the capabilities
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <span>

#include "cache/encoder/encoder_memory.h"
#include "cache/encoder/encoder_parts.h"
#include "cache/encoder/encoder_pass.h"
#include "cache/encoder/encoder_snapshots.h"
#include "cache/truncating_transactions.h"
#include "cache/two_phase.h"

namespace kvcache {

class EncoderCacheImpl final : public HalvedCache<EncoderCache> {
 public:
  explicit EncoderCacheImpl(const EncoderOptions& encoder)
      : HalvedCache({.snapshots = &snapshots_, .transactions = &transactions_, .memory = &memory_}),
        parts_(encoder) {}

  Status Init(KvBackend& backend, const CacheOptions& options) override;
  void Close() override;
  Status PrepareForward(const Batch& batch, ForwardMode mode) override {
    return pass_.Prepare(batch, mode);
  }
  void BeginForward() override { pass_.Begin(); }
  void EndPass() override { pass_.End(); }
  void SetLayer(int layer) override { parts_.storage.SetLayer(layer); }
  Status SetCausal(std::span<const std::int32_t> except) override {
    return pass_.SetCausal(except);
  }
  Status Put(const TensorView& k, const TensorView& v) override { return pass_.Put(k, v); }
  Result<DenseKv> Get() override { return pass_.Get(); }
  Result<LayerKv> Storage() override { return parts_.storage.Storage(); }
  const Visibility& Visible() const override { return pass_.Visible(); }
  Status PrepareAccept(std::span<const std::int32_t> last) override {
    return pass_.PrepareAccept(last);
  }
  void FinishAccept() override { pass_.FinishAccept(); }

  Position Length(SequenceId id) const override;
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length) override;
  bool CanResume(SequenceId id, Position position) const override;
  Result<Position> PrepareRestore(SequenceId id, Position target) override;
  Status Remove(SequenceId id, Position begin, Position end) override;
  Status CheckRemove(SequenceId id, Position begin, Position end) const override;
  Status EvictWindow(SequenceId id) override;

  Status SetSequence(SequenceId sequence) override { return pass_.SetSequence(sequence); }
  bool EncoderCached(SequenceId id) const override;
  Status CheckOutput(const Snapshot& snapshot, std::int32_t tokens,
                     std::span<const KvShape> layers) const override {
    return snapshots_.CheckOutput(snapshot, tokens, layers);
  }

  // For snapshots. Shortens the sequence to `length` tokens and takes captures above it back. The
  // output stays.
  void ChangeLength(SequenceId id, Position length);
  // Gives the sequence an output, whose entry it takes over, and `length` tokens. An output without an
  // entry leaves that of the sequence.
  void Replace(SequenceId id, const EncoderOutput& output, Position length);

  // For TruncatingTransactions. A sequence's output cannot change in one, so only its length does.
  Status CheckReady() const { return parts_.storage.CheckReady(); }
  Status CheckKnown(SequenceId id) const { return parts_.storage.CheckKnown(id); }
  OpenTransactions& open_transactions() { return parts_.transactions; }
  Position KnownTokens(SequenceId id) const { return parts_.lengths[Index(id)]; }
  Status PrepareTransaction(std::span<const SequenceLength> /*members*/, Position /*max_tokens*/) {
    return Status::Ok();
  }
  void BeginTransaction() { pass_.End(); }
  void KeepTokens(SequenceId id, Position length);

  const RefCountedCells& entries() const { return parts_.entries; }  // for inspection

 private:
  EncoderParts parts_;
  EncoderPass pass_{parts_};
  EncoderSnapshots snapshots_{parts_, pass_, *this};
  TruncatingTransactions<EncoderCacheImpl> transactions_{*this};
  EncoderMemory memory_{parts_, pass_};
};

}  // namespace kvcache
