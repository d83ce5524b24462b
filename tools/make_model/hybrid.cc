#include "make_model/hybrid.h"

#include <cmath>

#include "base/strings.h"

namespace kvcache::make_model {

HybridSizes HybridSizesOf(const Shape& shape) {
  HybridSizes sizes;
  const auto replace = [](int given, int& size) { size = given > 0 ? given : size; };
  replace(shape.family.attention_step, sizes.attention_step);
  replace(shape.family.state_dim, sizes.k_dim);
  replace(shape.family.state_heads, sizes.heads);
  replace(shape.family.state_groups, sizes.groups);
  sizes.v_dim = sizes.k_dim;
  return sizes;
}

bool IsAttention(const Shape& shape, int layer) {
  return (layer + 1) % HybridSizesOf(shape).attention_step == 0;
}

std::vector<std::int32_t> KvHeadsByLayer(const Shape& shape) {
  std::vector<std::int32_t> heads;
  for (int layer = 0; layer < shape.layers; ++layer) {
    heads.push_back(IsAttention(shape, layer) ? shape.kv_heads : 0);
  }
  return heads;
}

void AddStateMetadata(std::string_view architecture, const HybridSizes& sizes, GgufHeader& header) {
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat(architecture, ".ssm.", key), static_cast<std::uint32_t>(value));
  };
  set("conv_kernel", sizes.taps);
  set("inner_size", sizes.inner());
  set("state_size", sizes.k_dim);
  set("time_step_rank", sizes.heads);
  set("group_count", sizes.groups);
}

void AddTaps(TensorList& list, const std::string& name, int taps, int channels) {
  list.Add({.name = name,
            .dims = {taps, channels},
            .distribution = Distribution::kNormal,
            .scale = PerRoot(1.5f, taps),
            .keep_f32 = true});
}

void AddRates(TensorList& list, const std::string& name, std::vector<std::int64_t> dims) {
  constexpr float kSlowest = 0.004f;
  constexpr float kFastest = 3.0f;
  const auto heads = static_cast<int>(dims.back());
  std::vector<float> rates;
  for (int head = 0; head < heads; ++head) {
    const float share = heads > 1 ? static_cast<float>(head) / static_cast<float>(heads - 1) : 0.0f;
    rates.push_back(-kSlowest * std::pow(kFastest / kSlowest, share));
  }
  list.Add({.name = name, .dims = std::move(dims), .keep_f32 = true, .values = rates});
}

HybridSizes Mamba2Sizes(const Shape& shape) {
  HybridSizes sizes = HybridSizesOf(shape);
  sizes.v_dim = 32;
  sizes.heads = 2 * shape.hidden_size / sizes.v_dim;
  return sizes;
}

void AddMamba2(const Shape& shape, const std::string& block, TensorList& list) {
  const HybridSizes sizes = Mamba2Sizes(shape);
  const int inner = sizes.inner();
  list.Matrix(block + "ssm_in.weight", shape.hidden_size, inner + sizes.channels() + sizes.heads,
              PerRoot(1.0f, shape.hidden_size));
  AddTaps(list, block + "ssm_conv1d.weight", sizes.taps, sizes.channels());
  list.Vector(block + "ssm_conv1d.bias", sizes.channels(), Distribution::kNormal, kBiasDeviation);
  list.Vector(block + "ssm_dt.bias", sizes.heads, Distribution::kNormal, kBiasDeviation);
  AddRates(list, block + "ssm_a", {1, sizes.heads});
  list.Add({.name = block + "ssm_d",
            .dims = {1, sizes.heads},
            .distribution = Distribution::kNorm,
            .keep_f32 = true});
  list.Add({.name = block + "ssm_norm.weight",
            .dims = {inner / sizes.groups, sizes.groups},
            .distribution = Distribution::kNorm,
            .keep_f32 = true});
  list.Matrix(block + "ssm_out.weight", inner, shape.hidden_size,
              PerRoot(list.embedding() * 1.0f, inner));
}

}  // namespace kvcache::make_model
