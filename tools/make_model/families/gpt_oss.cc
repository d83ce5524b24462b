// gpt-oss: biases everywhere, sinks, windows in every other layer, always untied.
//
// Experts' inner values have deviation 2.5, so that some reach the clamps at 7. The gated values
// then have deviation 5, which the last matrix divides out.
#include "base/strings.h"
#include "make_model/families.h"

namespace kvcache::make_model {
namespace {

constexpr float kInnerDeviation = 2.5f;
constexpr float kGatedSize = 5.0f;
constexpr int kWindow = 128;

void AddExperts(const Shape& shape, const std::string& block, TensorList& list) {
  const float in = PerRoot(kInnerDeviation, shape.hidden_size);
  const float out = PerRoot(list.embedding() * kFfnGain / kGatedSize, shape.expert_ffn);
  const auto stack = [&](const std::string& name, int inputs, int outputs, float scale) {
    list.Add({name + ".weight", {inputs, outputs, shape.experts}, Distribution::kNormal, scale});
    list.Add({.name = name + ".bias",
              .dims = {outputs, shape.experts},
              .distribution = Distribution::kNormal,
              .scale = kBiasDeviation,
              .keep_f32 = true});
  };
  list.Add({.name = block + "ffn_gate_inp.weight",
            .dims = {shape.hidden_size, shape.experts},
            .distribution = Distribution::kNormal,
            .scale = PerRoot(kRouterDeviation, shape.hidden_size),
            .keep_f32 = true});
  list.Vector(block + "ffn_gate_inp.bias", shape.experts, Distribution::kNormal, kBiasDeviation);
  stack(block + "ffn_gate_exps", shape.hidden_size, shape.expert_ffn, in);
  stack(block + "ffn_up_exps", shape.hidden_size, shape.expert_ffn, in);
  stack(block + "ffn_down_exps", shape.expert_ffn, shape.hidden_size, out);
}

}  // namespace

void AddGptOss(const Shape& shape, GgufHeader& header) {
  Shape with_window = shape;
  if (shape.window == 0) with_window.window = kWindow;
  AddDecoderMetadata("gpt-oss", shape, header);
  AddWindows("gpt-oss", with_window, header);
}

std::vector<TensorSpec> GptOssTensors(const Shape& shape) {
  Shape untied = shape;
  untied.output = Output::kUntied;
  TensorList list(untied);
  list.Embedding();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    list.Attention(block, AttentionExtras::kBiases);
    list.Vector(block + "attn_output.bias", shape.hidden_size, Distribution::kNormal,
                kBiasDeviation);
    list.Vector(block + "attn_sinks.weight", shape.heads, Distribution::kNormal, kScoreDeviation);
    list.Norm(block + "post_attention_norm.weight");
    AddExperts(shape, block, list);
  }
  list.Output();
  return list.Take();
}

}  // namespace kvcache::make_model
