// The encoder cache's class, for its factory and for tests that inspect it.
//
//   EncoderCacheImpl ── EncoderParts      what the calls share: storage, entries, outputs, captures
//                    ├─ EncoderPass       the batch in progress, and the outputs that it puts
//                    ├─ EncoderSequences  changes of sequences outside of passes
//                    └─ EncoderSnapshots, EncoderTransactions, EncoderMemory   the capabilities
//
// Thread safety: as in kvcache/cache.h.
#pragma once

#include <cstdint>
#include <span>

#include "cache/encoder/encoder_memory.h"
#include "cache/encoder/encoder_parts.h"
#include "cache/encoder/encoder_pass.h"
#include "cache/encoder/encoder_sequences.h"
#include "cache/encoder/encoder_snapshots.h"
#include "cache/encoder/encoder_transactions.h"
#include "cache/two_phase.h"

namespace kvcache {

class EncoderCacheImpl final : public EncoderCache, public TwoPhaseCache {
 public:
  explicit EncoderCacheImpl(const EncoderOptions& encoder)
      : EncoderCache(
            {.snapshots = &snapshots_, .transactions = &transactions_, .memory = &memory_}),
        parts_(encoder) {}

  Status Init(KvBackend& backend, const CacheOptions& options) override;
  void Close() override;
  Status StartForward(const Batch& batch, ForwardMode mode) override {
    return StartInHalves(*this, batch, mode);
  }
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
  Status AcceptDrafts(std::span<const std::int32_t> last) override {
    return AcceptInHalves(*this, last);
  }
  Status PrepareAccept(std::span<const std::int32_t> last) override {
    return pass_.PrepareAccept(last);
  }
  void FinishAccept() override { pass_.FinishAccept(); }

  Position Length(SequenceId sequence) const override { return sequences_.Length(sequence); }
  Status CopyPrefix(SequenceId src, SequenceId dst, Position length) override {
    return sequences_.CopyPrefix(src, dst, length);
  }
  bool CanResume(SequenceId sequence, Position position) const override {
    return sequences_.CanResume(sequence, position);
  }
  Result<Position> PrepareRestore(SequenceId sequence, Position target) override {
    return sequences_.PrepareRestore(sequence, target);
  }
  Status Remove(SequenceId sequence, Position begin, Position end) override {
    return sequences_.Remove(sequence, begin, end);
  }
  Status CheckRemove(SequenceId sequence, Position begin, Position end) const override {
    return sequences_.CheckRemove(sequence, begin, end);
  }
  Status EvictWindow(SequenceId sequence) override { return sequences_.EvictWindow(sequence); }

  Status SetSequence(SequenceId sequence) override { return pass_.SetSequence(sequence); }
  bool EncoderCached(SequenceId sequence) const override { return sequences_.HasOutput(sequence); }
  Status CheckOutput(const Snapshot& snapshot, std::int32_t tokens,
                     std::span<const KvShape> layers) const override {
    return snapshots_.CheckOutput(snapshot, tokens, layers);
  }

  const RefCountedCells& entries() const { return parts_.entries; }  // for inspection

 private:
  EncoderParts parts_;
  EncoderPass pass_{parts_};
  EncoderSequences sequences_{parts_, pass_};
  EncoderSnapshots snapshots_{parts_, pass_, sequences_};
  EncoderTransactions transactions_{parts_, pass_, sequences_};
  EncoderMemory memory_{parts_, pass_};
};

}  // namespace kvcache
