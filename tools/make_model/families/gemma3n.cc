// gemma3n: four states of a token (AltUp), Laurel, inputs of layers and sparse gates in the first ten layers.
// The last layers share keys and values, as many as --shared-layers says; those behind the 20th without it.
//
// The number of states, Laurel's rank and the size of an input are those of the published models, since
// llama.cpp knows no others. Coefficients and the router are f32 in files of every type: converters leave them.
// Routers read states divided by hidden_size, so their deviation is √hidden_size.
#include <algorithm>
#include <cmath>

#include "base/strings.h"
#include "make_model/families.h"

namespace kvcache::make_model {
namespace {

// Of each result that a layer adds. Small, since noise grows in each of many layers.
constexpr float kAdded = 0.15f * kLogitDeviation;
constexpr float kCoefficients = 0.05f;
constexpr int kStates = 4;
constexpr int kRank = 64;
constexpr int kInputSize = 256;
constexpr int kOwnLayers = 20;

int SharedLayers(const Shape& shape) {
  return shape.family.shared_layers > 0 ? shape.family.shared_layers
                                        : std::max(0, shape.layers - kOwnLayers);
}

void AddFloats(std::string name, std::vector<std::int64_t> dims, float scale, TensorList& list) {
  list.Add({.name = std::move(name),
            .dims = std::move(dims),
            .distribution = Distribution::kNormal,
            .scale = scale,
            .keep_f32 = true});
}

void AddAttention(const Shape& shape, const std::string& block, TensorList& list) {
  const int queries = shape.heads * shape.head_dim;
  const int keys = shape.kv_heads * shape.head_dim;
  const float in = PerRoot(1.0f, shape.hidden_size);
  const float size = std::sqrt(PerRoot(kScoreDeviation, shape.head_dim));
  list.Norm(block + "attn_norm.weight");
  list.Matrix(block + "attn_q.weight", shape.hidden_size, queries, in);
  list.Vector(block + "attn_q_norm.weight", shape.head_dim, Distribution::kNorm, size);
  // llama.cpp requires these tensors in layers that do not use them, too.
  list.Matrix(block + "attn_k.weight", shape.hidden_size, keys, in);
  list.Vector(block + "attn_k_norm.weight", shape.head_dim, Distribution::kNorm, size);
  list.Matrix(block + "attn_v.weight", shape.hidden_size, keys, in);
  list.Matrix(block + "attn_output.weight", queries, shape.hidden_size, PerRoot(1.0f, queries));
  list.Vector(block + "post_attention_norm.weight", shape.hidden_size, Distribution::kNorm, kAdded);
}

void AddStates(const Shape& shape, const std::string& block, TensorList& list) {
  const int size = shape.hidden_size;
  list.Matrix(block + "laurel_l.weight", size, kRank, PerRoot(1.0f, size));
  list.Matrix(block + "laurel_r.weight", kRank, size, PerRoot(1.0f, kRank));
  list.Vector(block + "laurel_post_norm.weight", size, Distribution::kNorm, kAdded);
  list.Norm(block + "altup_router_norm.weight");
  AddFloats(block + "altup_router.weight", {size, kStates}, std::sqrt(static_cast<float>(size)),
            list);
  AddFloats(block + "altup_predict_coef.weight", {kStates, kStates * kStates}, kCoefficients, list);
  AddFloats(block + "altup_correct_coef.weight", {kStates, kStates}, kCoefficients, list);
  list.Norm(block + "altup_correct_scale.weight");
}

void AddInput(const Shape& shape, const std::string& block, TensorList& list) {
  list.Matrix(block + "inp_gate.weight", shape.hidden_size, kInputSize,
              PerRoot(1.0f / kLogitDeviation, shape.hidden_size));
  list.Matrix(block + "proj.weight", kInputSize, shape.hidden_size, PerRoot(1.0f, kInputSize));
  list.Vector(block + "post_norm.weight", shape.hidden_size, Distribution::kNorm, kAdded);
}

void AddStack(const char* name, const Shape& shape, TensorList& list) {
  list.Add({.name = name,
            .dims = {shape.hidden_size, shape.hidden_size, kStates - 1},
            .distribution = Distribution::kNormal,
            .scale = PerRoot(1.0f, shape.hidden_size)});
}

}  // namespace

void AddGemma3n(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("gemma3n", shape, header);
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat("gemma3n.", key), static_cast<std::uint32_t>(value));
  };
  set("attention.sliding_window", shape.window > 0 ? shape.window : 512);
  set("attention.shared_kv_layers", SharedLayers(shape));
  set("embedding_length_per_layer_input", kInputSize);
  if (shape.window_pattern >= 0) set("attention.sliding_window_pattern", shape.window_pattern);
}

std::vector<TensorSpec> Gemma3nTensors(const Shape& shape) {
  Shape tied = shape;
  tied.output = Output::kTied;
  TensorList list(tied);
  list.Embedding();
  const int inputs = kInputSize * shape.layers;
  list.Matrix("per_layer_token_embd.weight", inputs, shape.vocab, PerRoot(1.0f, kInputSize));
  list.Matrix("per_layer_model_proj.weight", shape.hidden_size, inputs, 1.0f);
  list.Vector("per_layer_proj_norm.weight", kInputSize, Distribution::kNorm, 1.0f);
  AddStack("altup_proj.weight", shape, list);
  AddStack("altup_unembd_proj.weight", shape, list);
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    AddAttention(shape, block, list);
    AddStates(shape, block, list);
    list.Norm(block + "ffn_norm.weight");
    list.FeedForward(block, shape.ffn);
    list.Vector(block + "post_ffw_norm.weight", shape.hidden_size, Distribution::kNorm, kAdded);
    AddInput(shape, block, list);
  }
  list.Output();
  return list.Take();
}

}  // namespace kvcache::make_model
