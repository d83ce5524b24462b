// The reference model of the causal cache. It also inspects the real cache's cell table.
//
// In addition to CausalReference it compares the cell table's invariants, and the positions and
// bytes of all sequences, including those that are not in the batch.
//
// Thread safety: none.
#pragma once

#include <memory>

#include "cache/causal/causal_cache_impl.h"
#include "support/causal_reference.h"

namespace kvcache::testing {

class InspectedCausal : public CausalReference {
 public:
  using CausalReference::CausalReference;

  std::unique_ptr<Cache> MakeCache(ReferenceBackend& backend) override;
  // Inspects `cache`, a part of another cache, instead of the one that MakeCache made.
  void LookAt(CausalCache& cache);

 protected:
  Difference CheckInternals() override;

 private:
  Difference CheckInvariants() const;
  Difference CheckSequences();

  CausalCache* cache_ = nullptr;
};

}  // namespace kvcache::testing
