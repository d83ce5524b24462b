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
#include <vector>

#include "kvcache/causal_cache.h"
#include "support/cache_reference.h"
#include "support/naive_causal.h"

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

  // The options of the cache, for reference models of kinds that contain a causal cache.
  CausalOptions Options(ReferenceBackend& backend) const;

 protected:
  // Selects the cache to compare with; MakeCache has selected the one that it made.
  void SetCache(Cache& cache) { cache_ = &cache; }
  // Further comparisons of a derived class, which knows the cache's inside.
  virtual Difference CheckInternals() { return {}; }
  // Compares the bytes of a cell in all layers with the token that it should hold.
  Difference CheckLayers(std::int32_t cell, const NaiveToken& token) const;
  const NaiveCausal& naive() const { return naive_; }
  std::int64_t cells() const { return cells_; }  // cells that tokens can have

 private:
  Status PutLayer(Cache& cache, const std::vector<TestToken>& tokens, int layer);
  Difference CheckBytes(const LayerKv& storage, int layer, std::int32_t cell,
                        const NaiveToken& token) const;
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
  NaiveCausal naive_;
  Cache* cache_ = nullptr;
  bool written_[kTestLayers] = {};  // has the layer memory?
  // Of the pass in progress, as CheckHistories found them.
  std::map<std::int32_t, const NaiveToken*> token_of_;
  std::map<const NaiveToken*, std::int32_t> cell_of_;
  std::vector<std::vector<std::int32_t>> expected_;  // [batch]: visible cells, ascending
};

}  // namespace kvcache::testing
