// gemma4: gemma3's norms. Layers with a window have heads of half the size (but at least 32) and
// more KV heads; layers without one have no V matrix. Each layer has an input vector. With four
// layers or more, the second half shares keys and values. Layers may have experts besides.
//
// Every other layer has no window, unless --window-pattern says otherwise. Scores are not scaled:
// the norms of q and k set their size. In layers without a window half of the pairs are not
// rotated; in the published models three quarters are not.
#include <algorithm>
#include <cmath>
#include <memory>

#include "base/strings.h"
#include "make_model/families.h"

namespace kvcache::make_model {
namespace {

constexpr float kAdded = 0.4f * kLogitDeviation;  // added three times per layer
constexpr int kInputSize = 32;
constexpr int kWindow = 512;

bool IsWindowed(const Shape& shape, int layer) {
  const int period = shape.window_pattern < 0 ? 2 : shape.window_pattern;
  return period == 0 || layer % period < period - 1;
}
int WindowDim(const Shape& shape) {
  return shape.head_dim > 32 ? shape.head_dim / 4 * 2 : shape.head_dim;
}
int HeadDim(const Shape& shape, int layer) {
  return IsWindowed(shape, layer) ? WindowDim(shape) : shape.head_dim;
}
int KvHeads(const Shape& shape, int layer) {
  return IsWindowed(shape, layer) ? shape.heads : shape.kv_heads;
}
int OwnLayers(const Shape& shape) {
  return shape.layers < 4 ? shape.layers : shape.layers - shape.layers / 2;
}
int TargetSize(const Shape& shape) {
  return shape.family.target_size > 0 ? shape.family.target_size : 2 * shape.hidden_size;
}

void AddPerLayer(std::string_view name, const Shape& shape, GgufHeader& header) {
  const auto layers = static_cast<std::size_t>(shape.layers);
  std::vector<std::int32_t> kv_heads;
  const auto windowed = std::make_unique<bool[]>(layers);
  for (int layer = 0; layer < shape.layers; ++layer) {
    kv_heads.push_back(KvHeads(shape, layer));
    windowed[static_cast<std::size_t>(layer)] = IsWindowed(shape, layer);
  }
  header.SetInts(StrCat(name, ".attention.head_count_kv"), kv_heads);
  header.SetBools(StrCat(name, ".attention.sliding_window_pattern"),
                  std::span<const bool>(windowed.get(), layers));
}

// Sets the keys of layers. The last `shared` of them have no keys and values.
void AddLayers(std::string_view name, const Shape& shape, int shared, GgufHeader& header) {
  AddSizeMetadata(name, shape, header);
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat(name, ".", key), static_cast<std::uint32_t>(value));
  };
  set("attention.sliding_window", shape.window > 0 ? shape.window : kWindow);
  set("attention.shared_kv_layers", shared);
  set("attention.key_length", shape.head_dim);
  set("attention.value_length", shape.head_dim);
  set("rope.dimension_count", shape.head_dim);
  set("attention.key_length_swa", WindowDim(shape));
  set("attention.value_length_swa", WindowDim(shape));
  set("rope.dimension_count_swa", WindowDim(shape));
  header.SetFloat32(StrCat(name, ".rope.freq_base_swa"), 10000.0f);
  AddPerLayer(name, shape, header);
}

void AddDivisors(const Shape& shape, TensorList& list) {
  std::vector<float> divisors(static_cast<std::size_t>(shape.head_dim / 2), 1.0f);
  std::fill(divisors.begin() + shape.head_dim / 4, divisors.end(), 1e30f);
  list.Add({.name = "rope_freqs.weight", .dims = {shape.head_dim / 2}, .values = divisors});
}

void AddAttention(const Shape& shape, int layer, int own_layers, const std::string& block,
                  TensorList& list) {
  const int dim = HeadDim(shape, layer);
  const int queries = shape.heads * dim;
  const int keys = KvHeads(shape, layer) * dim;
  const float in = PerRoot(1.0f, shape.hidden_size);
  const float size = std::sqrt(PerRoot(kScoreDeviation, dim));
  list.Norm(block + "attn_norm.weight");
  list.Matrix(block + "attn_q.weight", shape.hidden_size, queries, in);
  list.Vector(block + "attn_q_norm.weight", dim, Distribution::kNorm, size);
  if (layer < own_layers) {
    list.Matrix(block + "attn_k.weight", shape.hidden_size, keys, in);
    list.Vector(block + "attn_k_norm.weight", dim, Distribution::kNorm, size);
    if (IsWindowed(shape, layer)) list.Matrix(block + "attn_v.weight", shape.hidden_size, keys, in);
  }
  list.Matrix(block + "attn_output.weight", queries, shape.hidden_size, PerRoot(1.0f, queries));
  list.Vector(block + "post_attention_norm.weight", shape.hidden_size, Distribution::kNorm, kAdded);
}

void AddInput(const Shape& shape, const std::string& block, TensorList& list) {
  list.Matrix(block + "inp_gate.weight", shape.hidden_size, kInputSize,
              PerRoot(1.0f / kLogitDeviation, shape.hidden_size));
  list.Matrix(block + "proj.weight", kInputSize, shape.hidden_size, PerRoot(1.0f, kInputSize));
  list.Vector(block + "post_norm.weight", shape.hidden_size, Distribution::kNorm, kAdded);
}

// The router reads states that are divided by √hidden_size, so its scales are about that.
void AddExperts(const Shape& shape, const std::string& block, TensorList& list) {
  const int size = shape.hidden_size;
  list.Add({.name = block + "ffn_gate_inp.weight",
            .dims = {size, shape.experts},
            .distribution = Distribution::kNormal,
            .scale = PerRoot(kRouterDeviation, size),
            .keep_f32 = true});
  list.Vector(block + "ffn_gate_inp.scale", size, Distribution::kNorm,
              std::sqrt(static_cast<float>(size)));
  list.Add({.name = block + "ffn_gate_up_exps.weight",
            .dims = {size, 2 * shape.expert_ffn, shape.experts},
            .distribution = Distribution::kNormal,
            .scale = PerRoot(1.0f, size)});
  list.Add({.name = block + "ffn_down_exps.weight",
            .dims = {shape.expert_ffn, size, shape.experts},
            .distribution = Distribution::kNormal,
            .scale = PerRoot(1.0f, shape.expert_ffn)});
  list.Vector(block + "ffn_down_exps.scale", shape.experts, Distribution::kNorm, 1.0f);
  for (const char* norm : {"pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"}) {
    list.Norm(StrCat(block, norm, ".weight"));
  }
}

void AddLayer(const Shape& shape, int layer, int own_layers, TensorList& list) {
  const std::string block = StrCat("blk.", layer, ".");
  AddAttention(shape, layer, own_layers, block, list);
  list.Norm(block + "ffn_norm.weight");
  list.FeedForward(block, shape.ffn);
  if (shape.experts > 0) AddExperts(shape, block, list);
  list.Vector(block + "post_ffw_norm.weight", shape.hidden_size, Distribution::kNorm, kAdded);
}

void AddScale(int layer, TensorList& list) {
  list.Add({.name = StrCat("blk.", layer, ".layer_output_scale.weight"),
            .dims = {1},
            .values = {layer % 2 == 0 ? 0.75f : 1.25f}});
}

}  // namespace

void AddGemma4(const Shape& shape, GgufHeader& header) {
  AddLayers("gemma4", shape, shape.layers - OwnLayers(shape), header);
  header.SetUint32("gemma4.embedding_length_per_layer_input", kInputSize);
  header.SetFloat32("gemma4.final_logit_softcapping", 20.0f);
  if (shape.experts > 0 && shape.expert_ffn == shape.ffn) {
    header.SetUint32("gemma4.expert_feed_forward_length",
                     static_cast<std::uint32_t>(shape.expert_ffn));
  }
}

std::vector<TensorSpec> Gemma4Tensors(const Shape& shape) {
  Shape tied = shape;
  tied.output = Output::kTied;
  TensorList list(tied);
  list.Embedding();
  const int inputs = kInputSize * shape.layers;
  list.Matrix("per_layer_token_embd.weight", inputs, shape.vocab, PerRoot(1.0f, kInputSize));
  list.Matrix("per_layer_model_proj.weight", shape.hidden_size, inputs, 1.0f);
  list.Vector("per_layer_proj_norm.weight", kInputSize, Distribution::kNorm, 1.0f);
  AddDivisors(shape, list);
  for (int layer = 0; layer < shape.layers; ++layer) {
    AddLayer(shape, layer, OwnLayers(shape), list);
    AddInput(shape, StrCat("blk.", layer, "."), list);
    AddScale(layer, list);
  }
  list.Output();
  return list.Take();
}

void AddGemma4Assistant(const Shape& shape, GgufHeader& header) {
  constexpr std::string_view kName = "gemma4-assistant";
  AddLayers(kName, shape, shape.layers, header);
  header.SetUint32(StrCat(kName, ".embedding_length_per_layer_input"), 0);
  header.SetUint32(StrCat(kName, ".embedding_length_out"),
                   static_cast<std::uint32_t>(TargetSize(shape)));
  header.SetUint32(StrCat(kName, ".nextn_predict_layers"),
                   static_cast<std::uint32_t>(shape.layers));
}

std::vector<TensorSpec> Gemma4AssistantTensors(const Shape& shape) {
  Shape tied = shape;
  tied.output = Output::kTied;
  TensorList list(tied);
  list.Embedding();
  const int state = TargetSize(shape);
  list.Matrix("nextn.pre_projection.weight", 2 * state, shape.hidden_size,
              PerRoot(1.0f, 2 * state));
  list.Matrix("nextn.post_projection.weight", shape.hidden_size, state,
              PerRoot(1.0f, shape.hidden_size));
  // They are of layers without a window; llama.cpp refuses them without such a layer.
  bool has_full = false;
  for (int layer = 0; layer < shape.layers; ++layer) {
    has_full = has_full || !IsWindowed(shape, layer);
  }
  if (has_full) AddDivisors(shape, list);
  for (int layer = 0; layer < shape.layers; ++layer) {
    AddLayer(shape, layer, 0, list);
    AddScale(layer, list);
  }
  list.Output();
  return list.Take();
}

}  // namespace kvcache::make_model
