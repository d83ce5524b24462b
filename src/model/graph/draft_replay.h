// The inputs of recurrent layers that a pass of drafts keeps, and the function that computes the
// states of accepted drafts from them (RecurrentOptions::replay_drafts).
//
//   inputs of a draft   convolution's inputs [channels] | keys | values | decays | steps
//
// Neither queries nor outputs are needed again, so a replay costs less than the pass did.
//
// Thread safety: as the backend's.
#pragma once

#include <cstdint>

#include "kvcache/backend.h"
#include "kvcache/recurrent_cache.h"
#include "kvcache/status.h"
#include "model/graph/recurrent_params.h"

namespace kvcache {

// Copy a layer's inputs to `kept`, which is RecurrentCache::DraftInputs. Errors: the backend's.
Status KeepConvInputs(Backend& backend, const TensorView& kept, const TensorView& x);
Status KeepScanInputs(Backend& backend, const TensorView& kept, const ScanInputs& inputs);

class DraftReplayer {
 public:
  // `backend` must outlive the object. `scan` has the options of all the model's scans; its skip
  // factors do not matter.
  DraftReplayer(Backend& backend, const RecurrentParams& params, const ScanOptions& scan);

  // Returns RecurrentOptions::draft_inputs.
  std::int64_t inputs() const;
  Status operator()(const DraftReplay& replay) const;

 private:
  Backend* backend_;
  std::int64_t taps_, channels_, k_dim_, v_dim_, groups_, heads_;
  ScanOptions scan_;
};

}  // namespace kvcache
