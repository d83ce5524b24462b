// The lfm2 and lfm2moe architectures (Liquid's LFM2). Most layers are short convolutions between
// two gates:
//
//   (b, c, x) = Win n        y = Wout (c × conv(b × x))
//
// The others are grouped-query attention with head norms, in lfm2 within a window if the file has one. A
// layer with 0 KV heads is a convolution.
// Every layer has a gated feed-forward part. In lfm2moe all layers except the first ones have
// experts, scored by sigmoids and chosen with a bias.
//
// Source: Liquid AI, "LFM2 technical report" (2025), and transformers' modeling_lfm2.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "model/families/architectures.h"
#include "model/graph/attention/window_layers.h"
#include "model/graph/hybrid_decoder.h"

namespace kvcache {
namespace {

class Lfm2 final : public HybridDecoder {
 public:
  using HybridDecoder::HybridDecoder;

 protected:
  Status LoadMixer(WeightReader& reader, int index, SelfAttention* attention) override;
  void RunMixer(Pass& pass, int index, const TensorView& h) override;

 private:
  struct Convolution {
    std::vector<Projection> in;  // b, c, x
    ConvTaps taps;
    Projection out;
  };
  std::map<int, Convolution> convolutions_;  // by layer
};

Status Lfm2::LoadMixer(WeightReader& reader, int index, SelfAttention* attention) {
  if (!IsRecurrent(index)) return HybridDecoder::LoadMixer(reader, index, attention);
  const std::string prefix = LayerPrefix(index) + "shortconv.";
  const std::int64_t hidden_size = params().hidden_size;
  Convolution& c = convolutions_[index];
  KVCACHE_ASSIGN_OR_RETURN(c.in, reader.LinearParts(prefix + "in_proj", hidden_size,
                                                    {hidden_size, hidden_size, hidden_size}));
  KVCACHE_ASSIGN_OR_RETURN(
      c.taps.taps, reader.FloatTable(prefix + "conv.weight", recurrent().taps, hidden_size));
  KVCACHE_ASSIGN_OR_RETURN(c.out, reader.Linear(prefix + "out_proj", hidden_size, hidden_size));
  return Status::Ok();
}

void Lfm2::RunMixer(Pass& pass, int index, const TensorView& h) {
  if (!IsRecurrent(index)) return HybridDecoder::RunMixer(pass, index, h);
  const Convolution& mixer = convolutions_.at(index);
  const Pass::Scope scope(pass);
  const TensorView b = pass.TakeHidden(params().hidden_size);
  const TensorView c = pass.TakeHidden(params().hidden_size);
  const TensorView x = pass.TakeHidden(params().hidden_size);
  pass.Linear(h, {{mixer.in[0], b}, {mixer.in[1], c}, {mixer.in[2], x}});
  // The convolution must not write to its input, so it writes to h, which is no longer needed.
  pass.Multiply(x, b);
  pass.ShortConv(index, x, mixer.taps, h);
  pass.Multiply(c, h);
  pass.Linear(c, {{mixer.out, h}});
}

Result<ExpertParams> ReadLfm2Experts(KeyReader& keys, const LayerParams& params) {
  KVCACHE_ASSIGN_OR_RETURN(ExpertParams experts, ReadExpertParams(keys, params, {.sigmoid = true}));
  if (experts.count == 0) return keys.Unsupported("expert_count");
  experts.selection_bias = true;
  // The tensors tell which layers are dense; the key is read so that it counts as known.
  KVCACHE_ASSIGN_OR_RETURN([[maybe_unused]] const int dense,
                           keys.IntOrZero("leading_dense_block_count", params.layers));
  return experts;
}

}  // namespace

Result<std::unique_ptr<Decoder>> MakeLfm2(ModelSource& source) {
  KeyReader& keys = source.keys;
  KVCACHE_ASSIGN_OR_RETURN(LayerParams params, ReadLayerParams(keys, LayerKinds::kHybrid));
  params.output_norm_name = "token_embd_norm";
  KVCACHE_ASSIGN_OR_RETURN(RecurrentParams recurrent, ReadRecurrentParams(keys, &params));
  BlockParams blocks{.attention = {.norms = QkNorms::kHeads}};
  if (source.name == "lfm2moe") {
    KVCACHE_ASSIGN_OR_RETURN(blocks.experts, ReadLfm2Experts(keys, params));
  }
  KVCACHE_ASSIGN_OR_RETURN(blocks.spans, ReadAttentionSpans(keys, params));
  KVCACHE_ASSIGN_OR_RETURN(blocks.rope,
                           ReadRope(keys, params, RopeParams::Pairing::kHalves, source.weights));
  return source.Make<Lfm2>(std::move(params), std::move(recurrent), std::move(blocks));
}

}  // namespace kvcache
