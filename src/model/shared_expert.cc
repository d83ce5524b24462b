#include "model/shared_expert.h"

#include <utility>

namespace kvcache {

Result<SharedExpert> SharedExpert::Load(WeightReader& reader, const std::string& prefix,
                                        std::int64_t width, std::int64_t inner,
                                        SharedExpertGate gate) {
  SharedExpert e;
  KVCACHE_ASSIGN_OR_RETURN(e.ffn, GatedFeedForward::Load(reader, prefix, width, inner, "_shexp"));
  if (gate == SharedExpertGate::kNone) return e;
  KVCACHE_ASSIGN_OR_RETURN(e.gate, reader.Linear(prefix + "ffn_gate_inp_shexp", width, 1));
  return e;
}

void SharedExpert::Run(Pass& pass, const TensorView& h, const TensorView& out) const {
  if (!gate.has_value()) return ffn.Run(pass, h, out);
  const Pass::Scope scope(pass);
  const TensorView share = pass.TakeHidden(1);
  pass.Linear(h, {{*gate, share}});
  pass.Activate(share, Activation::kSigmoid);
  ffn.Run(pass, h, out);
  pass.Multiply(out, share);
}

}  // namespace kvcache
