// The reference model of a wrapper: the reference models of its caches, side by side.
//
// By definition, every call goes to all of them and takes effect in all or in none.
//
// Thread safety: none.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "support/cache_reference.h"

namespace kvcache::testing {

class WrapperReference : public CacheReference {
 public:
  explicit WrapperReference(std::vector<std::unique_ptr<CacheReference>> references)
      : references_(std::move(references)) {}

  std::unique_ptr<Cache> MakeCache(ReferenceBackend& backend) override;
  StatusCode Prepare(const TestBatch& batch, ForwardMode mode) const override;
  StatusCode CheckAccept(const std::vector<int>& last) const override;
  StatusCode CheckCopy(int src, int dst, Position length) const override;
  StatusCode CheckRemove(int sequence, Position begin, Position end) const override;
  bool CanResume(int sequence, Position position) const override;
  bool CanGoBackTo(int sequence, Position length) const override;
  void Begin(const TestBatch& batch, ForwardMode mode) override;
  void SetNonCausal(const std::vector<int>& queries) override;
  void Accept(const std::vector<int>& last) override;
  void Copy(int src, int dst, Position length) override;
  void Remove(int sequence, Position begin, Position end) override;
  void PrepareRestore(int sequence, Position length) override;
  void EndPass() override;
  void Evict(int sequence) override;
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
  void set_snapshots(bool any) override;
  StatusCode CheckTransaction(const std::vector<SequenceLength>& members,
                              Position max_tokens) const override;
  void BeginTransaction(const std::vector<SequenceLength>& members, Position max_tokens) override;
  StatusCode CheckCommit(const std::vector<SequenceLength>& kept) const override;
  void Commit(const std::vector<SequenceLength>& kept) override;
  void RollBack(const std::vector<SequenceLength>& members) override;

  Status RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) override;
  Difference Check() override;
  Position length(int sequence) const override;
  std::vector<int> drafts() const override { return references_.front()->drafts(); }
  unsigned coverage() const override;

 private:
  template <typename Call>
  StatusCode FirstError(const Call& call) const {
    for (const auto& reference : references_) {
      if (const StatusCode code = call(*reference); code != StatusCode::kOk) return code;
    }
    return StatusCode::kOk;
  }

  std::vector<std::unique_ptr<CacheReference>> references_;
  std::vector<Cache*> caches_;
  Cache* cache_ = nullptr;
};

}  // namespace kvcache::testing
