// The reference model of the encoder cache. It inspects the real cache's entries.
//
// The model is a map from sequence to output. A pass puts an output for each sequence with an item
// in the batch and for each whose first token is at position 0.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cache/encoder/encoder_cache_impl.h"
#include "support/cache_reference.h"
#include "support/reference_transactions.h"

namespace kvcache::testing {

class EncoderReference : public CacheReference {
 public:
  EncoderReference(const ReferenceSetup& setup, int tokens);

  std::unique_ptr<Cache> MakeCache(ReferenceBackend& backend) override;
  StatusCode Prepare(const TestBatch& batch, ForwardMode mode) const override;
  StatusCode CheckAccept(const std::vector<int>& last) const override;
  StatusCode CheckCopy(int src, int dst, Position length) const override;
  StatusCode CheckRemove(int sequence, Position begin, Position end) const override;
  bool CanResume(int sequence, Position position) const override;
  bool CanGoBackTo(int sequence, Position length) const override;
  void Begin(const TestBatch& batch, ForwardMode mode) override;
  void SetNonCausal(const std::vector<int>& /*queries*/) override {}
  void Accept(const std::vector<int>& last) override;
  void Copy(int src, int dst, Position length) override;
  void Remove(int sequence, Position begin, Position end) override;
  void PrepareRestore(int /*sequence*/, Position /*length*/) override {}
  void EndPass() override;
  StatusCode CheckSnapshot(int sequence, Position begin, Position end) const override;
  ReferenceSnapshotPtr TakeSnapshot(int sequence, Position begin, Position end) override;
  StatusCode CheckRestore(int sequence, const ReferenceSnapshot* snapshot,
                          Position target) const override;
  void Restore(int sequence, const ReferenceSnapshot* snapshot, Position target) override;
  ReferenceSnapshotPtr Merge(const ReferenceSnapshotPtr& parent,
                             const ReferenceSnapshotPtr& child) override;
  std::pair<ReferenceSnapshotPtr, ReferenceSnapshotPtr> Split(const ReferenceSnapshotPtr& snapshot,
                                                              Position position) override;
  StatusCode CheckSchedule(int sequence, Position begin,
                           const std::vector<Position>& lengths) const override;
  void Schedule(int sequence, Position begin, const std::vector<Position>& lengths) override;
  std::vector<ReferenceSnapshotPtr> TakeCaptures(int sequence) override;
  void Follow(ReferenceSnapshot& snapshot, const Snapshot& real) override;
  StatusCode CheckTransaction(const std::vector<SequenceLength>& members,
                              Position max_tokens) const override;
  void BeginTransaction(const std::vector<SequenceLength>& members, Position max_tokens) override;
  StatusCode CheckCommit(const std::vector<SequenceLength>& kept) const override;
  void Commit(const std::vector<SequenceLength>& kept) override;
  void RollBack(const std::vector<SequenceLength>& members) override { Commit(members); }

  Status RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) override;
  Difference Check() override;
  Position length(int sequence) const override { return lengths_[sequence]; }
  std::vector<int> drafts() const override;
  unsigned coverage() const override;

 private:
  struct Output {
    int tokens = 0;
    std::uint32_t content[kTestLayers] = {};  // 0: unknown
  };
  using Shared = std::shared_ptr<Output>;
  struct Kept;  // a snapshot
  struct Captures {
    std::vector<Position> lengths;
    std::vector<ReferenceSnapshotPtr> taken;
    Position begin = 0;
  };

  bool Known(int sequence) const;
  // Takes the captures that have the output which a Put is about to replace.
  void CaptureBeforePut(int sequence);
  void TruncateCaptures(int sequence, Position length);
  // Notes that the sequence's output is about to be replaced.
  void NoteGone(int sequence);
  Status PutAll(Cache& cache, int sequence, std::uint32_t content, const ScriptStep& step);
  Difference CheckMetadata() const;
  Difference CheckQuery(std::size_t query);
  Difference CheckLayer(int layer, const Output& output, std::int32_t first_cell);
  Difference CheckGet(int layer, int sequence, const Output* output);

  ReferenceSetup setup_;
  int tokens_;
  EncoderCacheImpl* cache_ = nullptr;
  std::vector<Shared> outputs_;  // [sequences]; null: none
  // [sequences]: position of the token that the output belongs to. Forks of an output may differ.
  std::vector<Position> positions_;
  std::vector<Position> lengths_;
  // [sequences]: position of the first replaced output; kEndOfSequence: none.
  std::vector<Position> first_gone_;
  std::vector<Captures> captures_;  // [sequences]
  ReferenceTransactions transactions_;
  // The pass in progress.
  std::vector<int> batch_sequences_;
  std::map<int, Position> notes_;   // per sequence: position of a new output
  std::optional<int> newest_item_;  // sequence of the newest item
  std::vector<TestToken> drafts_;
  bool in_pass_ = false;
  bool reserving_ = false;
  bool written_[kTestLayers] = {};
};

}  // namespace kvcache::testing
