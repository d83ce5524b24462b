#include "model/shared_experts.h"

#include <string>
#include <utility>

namespace kvcache {

Result<SharedExperts> SharedExperts::Routed(WeightReader& reader, const LayerParams& params,
                                            const ExpertParams& experts, std::int64_t shared_ffn,
                                            int layer) {
  const std::string prefix = LayerPrefix(layer);
  SharedExperts block;
  KVCACHE_ASSIGN_OR_RETURN(Experts routed, Experts::Load(reader, prefix, params.width, experts));
  block.routed = std::move(routed);
  KVCACHE_ASSIGN_OR_RETURN(
      block.everyones, GatedFeedForward::Load(reader, prefix, params.width, shared_ffn, "_shexp"));
  return block;
}

Result<SharedExperts> SharedExperts::Dense(WeightReader& reader, const LayerParams& params,
                                           int layer) {
  SharedExperts block;
  KVCACHE_ASSIGN_OR_RETURN(block.everyones,
                           GatedFeedForward::Load(reader, LayerPrefix(layer), params.width,
                                                  params.ffn[static_cast<std::size_t>(layer)]));
  return block;
}

void SharedExperts::Run(Pass& pass, ExpertPlan& plan, const TensorView& h,
                        const TensorView& out) const {
  if (!routed.has_value()) return everyones.Run(pass, h, out);
  const Pass::Scope scope(pass);
  const TensorView own = pass.TakeHidden(h.dims[0]);
  routed->Run(pass, plan, h, own);
  everyones.Run(pass, h, out);
  pass.Add(out, own);
}

}  // namespace kvcache
