// A feed-forward part with something for every token: in layers with a router, the chosen experts'
// answer and that of a shared network, added; in the others that network alone.
//
// Thread safety: one thread at a time.
#pragma once

#include <optional>

#include "model/blocks.h"
#include "model/experts.h"

namespace kvcache {

struct SharedExperts {
  std::optional<Experts> routed;
  GatedFeedForward everyones;  // with a router: ffn_…_shexp; else ffn_…

  // A layer with a router, whose shared network has inner width `shared_ffn`.
  static Result<SharedExperts> Routed(WeightReader& reader, const LayerParams& params,
                                      const ExpertParams& experts, std::int64_t shared_ffn,
                                      int layer);
  // A layer without.
  static Result<SharedExperts> Dense(WeightReader& reader, const LayerParams& params, int layer);

  void Run(Pass& pass, ExpertPlan& plan, const TensorView& h, const TensorView& out) const;
};

}  // namespace kvcache
