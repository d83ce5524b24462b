// The reference model of the causal cache, with a look inside the real one.
//
// Compares, beyond CausalReference: the cell table's invariants, and the positions and bytes of all
// sequences, also of those that are not in the batch.
//
// Thread safety: none.
#pragma once

#include <memory>

#include "cache/causal_cache_impl.h"
#include "support/causal_reference.h"

namespace kvcache::testing {

class InspectedCausal : public CausalReference {
 public:
  using CausalReference::CausalReference;

  std::unique_ptr<Cache> MakeCache(ReferenceBackend& backend) override;
  // Inspects `cache`, the part of another cache, instead of one that MakeCache made.
  void LookAt(CausalCache& cache);

 protected:
  Difference CheckInternals() override;

 private:
  Difference CheckInvariants() const;
  Difference CheckSequences();

  CausalCache* cache_ = nullptr;
};

}  // namespace kvcache::testing
