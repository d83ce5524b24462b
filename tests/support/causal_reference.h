// The reference model of the causal cache: full, windowed, with retained tokens, or chunked.
//
// Compares, through the public interface alone: the positions and bytes of each sequence of the
// batch; which tokens share a cell; the visibility of each query, in closed form and through dense
// views with a mask; the bytes allocated.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/causal_cache.h"
#include "support/cache_reference.h"
#include "support/reference_causal_cache.h"

namespace kvcache::testing {

struct CausalReferenceOptions {
  bool can_shift = true;
  int window = 0;
  int retained_tokens = 0;
  int chunk = 0;
};
std::string ToText(const CausalReferenceOptions& options);

class CausalReference : public CacheReference {
 public:
  CausalReference(const ReferenceSetup& setup, const CausalReferenceOptions& causal);

  std::unique_ptr<Cache> MakeCache(ReferenceBackend& backend) override;
  StatusCode Prepare(const TestBatch& batch, ForwardMode mode) const override;
  StatusCode CheckAccept(const std::vector<int>& last) const override;
  StatusCode CheckCopy(int src, int dst, Position length) const override;
  StatusCode CheckRemove(int sequence, Position begin, Position end) const override;
  bool CanResume(int sequence, Position position) const override;
  bool CanGoBackTo(int sequence, Position length) const override;
  void Begin(const TestBatch& batch, ForwardMode mode) override;
  void SetNonCausal(const std::vector<int>& queries) override { model_.SetNonCausal(queries); }
  void Accept(const std::vector<int>& last) override;
  void Copy(int src, int dst, Position length) override;
  void Remove(int sequence, Position begin, Position end) override;
  void PrepareRestore(int /*sequence*/, Position /*length*/) override {}
  void EndPass() override { model_.EndPass(); }
  void Evict(int sequence) override { model_.Evict(sequence); }
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
                              Position max_tokens) const override {
    return model_.CheckTransaction(members, max_tokens);
  }
  void BeginTransaction(const std::vector<SequenceLength>& members, Position max_tokens) override {
    model_.BeginTransaction(members, max_tokens);
  }
  StatusCode CheckCommit(const std::vector<SequenceLength>& kept) const override {
    return model_.CheckCommit(kept);
  }
  void Commit(const std::vector<SequenceLength>& kept) override;
  void RollBack(const std::vector<SequenceLength>& members) override { Commit(members); }

  Status RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) override;
  Difference Check() override;
  Position length(int sequence) const override { return model_.length(sequence); }
  std::vector<int> drafts() const override { return model_.drafts(); }
  unsigned coverage() const override;

  // Returns the options of the cache, for reference models of kinds that contain a causal cache.
  CausalOptions Options(ReferenceBackend& backend) const;

 protected:
  // Selects the cache to compare with; MakeCache has selected the one that it made.
  void SetCache(Cache& cache) { cache_ = &cache; }
  // A derived class that can look inside the cache adds its comparisons here.
  virtual Difference CheckInternals() { return {}; }
  // Compares the bytes of a cell, in all layers, with the token that it must hold.
  Difference CheckLayers(std::int32_t cell, const ReferenceToken& token) const;
  const ReferenceCausalCache& model() const { return model_; }
  std::int64_t cells() const { return cells_; }  // cells that can hold tokens

 private:
  // The captures of a sequence, by definition: what it had when it reached the length.
  struct Captures {
    std::vector<Position> lengths;
    std::vector<ReferenceSnapshotPtr> taken;
    Position begin = 0;
    std::size_t next = 0;
  };
  // Takes the captures that a sequence has reached. `before`: its tokens before the pass.
  void Capture(int sequence, const ReferenceCausalCache::Sequence& before);
  void TruncateCaptures(int sequence, Position length);
  // Returns kCacheFull if a restore needs more cells than there are.
  StatusCode CheckRoom(int sequence, const ReferenceSnapshot* snapshot, Position target) const;
  Status PutLayer(Cache& cache, const std::vector<TestToken>& tokens, int layer);
  Difference CheckBytes(const LayerKv& storage, int layer, std::int32_t cell,
                        const ReferenceToken& token) const;
  Difference CheckAllocatedBytes() const;
  Difference CheckHistory(std::size_t query);
  Difference CheckHistories();
  Difference CheckPass();
  Difference CheckClosedForm() const;
  Difference CheckViews(int layer);

  ReferenceSetup setup_;
  CausalReferenceOptions causal_;
  std::int32_t retained_tokens_ = 0;  // by the rule in kvcache/causal_cache.h; 0: everything
  std::int64_t cells_ = 0;
  ReferenceCausalCache model_;
  Cache* cache_ = nullptr;
  std::vector<Captures> captures_;  // [sequences]
  bool took_back_ = false;          // a transaction ended with fewer tokens than it wrote
  bool written_[kTestLayers] = {};  // true: the layer has memory
  // The cells of the pass in progress, as CheckHistories found them.
  std::map<std::int32_t, const ReferenceToken*> token_of_;
  std::map<const ReferenceToken*, std::int32_t> cell_of_;
  std::vector<std::vector<std::int32_t>> expected_;  // [batch]: visible cells, ascending
};

}  // namespace kvcache::testing
