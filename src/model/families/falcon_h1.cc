// The falcon-h1 architecture (TII's Falcon-H1): every layer has grouped-query attention and a Mamba-2 mixer
// side by side, which read the same normed states and whose results are added. The published factors of
// embedding, keys and so on are folded into a file's weights.
//
// Source: Falcon-LLM team, "Falcon-H1" (2025), and transformers' modeling_falcon_h1.
#include <map>
#include <utility>

#include "model/families/architectures.h"
#include "model/graph/hybrid_decoder.h"
#include "model/graph/mamba2.h"

namespace kvcache {
namespace {

class FalconH1 final : public HybridDecoder {
 public:
  using HybridDecoder::HybridDecoder;

 protected:
  Status LoadMixer(WeightReader& reader, int index, SelfAttention* attention) override;
  void RunMixer(Pass& pass, int index, const TensorView& h) override;

 private:
  std::map<int, Mamba2> mambas_;  // by layer
};

Status FalconH1::LoadMixer(WeightReader& reader, int index, SelfAttention* attention) {
  KVCACHE_ASSIGN_OR_RETURN(
      mambas_[index], Mamba2::Load(reader, params(), recurrent(), index, Mamba2Norm::kIfPresent));
  return HybridDecoder::LoadMixer(reader, index, attention);
}

void FalconH1::RunMixer(Pass& pass, int index, const TensorView& h) {
  const Pass::Scope scope(pass);
  const TensorView scanned = pass.TakeHidden(params().hidden_size);
  mambas_.at(index).Run(pass, recurrent(), index, h, scanned);
  HybridDecoder::RunMixer(pass, index, h);
  pass.Add(h, scanned);
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeFalconH1(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys));
  KVCACHE_ASSIGN_OR_RETURN(RecurrentParams recurrent, ReadRecurrentParams(keys, &params));
  BlockParams blocks{.attention = {.bias = Bias::kIfPresent}};
  KVCACHE_ASSIGN_OR_RETURN(blocks.rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<FalconH1>(std::move(params), std::move(recurrent), std::move(blocks));
}

}  // namespace kvcache
