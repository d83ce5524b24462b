// The causal cache and its reference model: full, windowed, with extra memory, chunked.
//
// Compared: each sequence's positions, and its bytes in each layer; which tokens share a cell;
// what each query sees, in closed form and through views with a mask; the cell table's
// invariants; the bytes allocated.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kvcache/causal_cache.h"
#include "support/cache_reference.h"
#include "support/naive_causal.h"

namespace kvcache {
class CausalCache;
}

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
  void SetNonCausal(const std::vector<int>& queries) override { naive_.SetNonCausal(queries); }
  void Accept(const std::vector<int>& last) override { naive_.Accept(last); }
  void Copy(int src, int dst, Position length) override;
  void Remove(int sequence, Position begin, Position end) override;
  void PrepareRestore(int /*sequence*/, Position /*length*/) override {}
  void EndPass() override { naive_.EndPass(); }
  Status RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) override;
  Difference Check() override;
  Position length(int sequence) const override { return naive_.length(sequence); }
  std::vector<int> drafts() const override { return naive_.drafts(); }
  unsigned coverage() const override;

  // For references of kinds that contain a causal cache: its options, and to look at `cache`
  // instead.
  CausalOptions Options(ReferenceBackend& backend) const;
  void LookAt(CausalCache& cache) { cache_ = &cache; }

  const NaiveCausal& naive() const { return naive_; }
  std::int64_t cells() const { return cells_; }  // that tokens can have

 private:
  Status PutLayer(Cache& cache, const std::vector<TestToken>& tokens, int layer);
  Difference CheckInvariants() const;
  Difference CheckSequences();
  Difference CheckBytes(const LayerKv& storage, int layer, std::int32_t cell,
                        const NaiveToken& token) const;
  Difference CheckRetained() const;
  Difference CheckPass();
  Difference CheckClosedForm() const;
  Difference CheckViews(int layer);
  std::vector<std::int32_t> DraftCells() const;
  std::vector<std::int32_t> ExpectedCells(const NaiveCausal::Query& query) const;

  ReferenceSetup setup_;
  CausalReferenceOptions causal_;
  std::int32_t retained_tokens_ = 0;  // as the contract computes it; 0: everything
  std::int64_t cells_ = 0;
  NaiveCausal naive_;
  CausalCache* cache_ = nullptr;
  bool written_[kTestLayers] = {};  // has the layer memory?
};

}  // namespace kvcache::testing
