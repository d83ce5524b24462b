#include "make_model/mixture.h"

#include <cstdlib>
#include <string_view>

#include "base/strings.h"

namespace kvcache::make_model {
namespace {

struct Named {
  std::string_view name;
  WeightScheme scheme;
  std::uint32_t file_type;  // llama.cpp's number
};

constexpr Named kSchemes[] = {
    {"f32", {DType::kF32, Mix::kPure}, 0},
    {"f16", {DType::kF16, Mix::kPure}, 1},
    {"bf16", {DType::kBF16, Mix::kPure}, 32},
    {"q4_0", {DType::kQ4_0, Mix::kPure}, 2},
    {"q4_1", {DType::kQ4_1, Mix::kPure}, 3},
    {"q5_0", {DType::kQ5_0, Mix::kPure}, 8},
    {"q5_1", {DType::kQ5_1, Mix::kPure}, 9},
    {"q8_0", {DType::kQ8_0, Mix::kPure}, 7},
    {"q4_k", {DType::kQ4_K, Mix::kPure}, 14},
    {"q5_k", {DType::kQ5_K, Mix::kPure}, 16},
    {"q6_k", {DType::kQ6_K, Mix::kPure}, 18},
    {"q4_k_m", {DType::kQ4_K, Mix::kMedium}, 15},
    {"q5_k_m", {DType::kQ5_K, Mix::kMedium}, 17},
    {"q2_k", {DType::kQ2_K, Mix::kPure}, 10},
    {"q3_k", {DType::kQ3_K, Mix::kPure}, 11},
    {"iq4_nl", {DType::kIQ4_NL, Mix::kPure}, 25},
    {"iq4_xs", {DType::kIQ4_XS, Mix::kPure}, 30},
    {"mxfp4", {DType::kMXFP4, Mix::kPure}, 38},
    {"mxfp4_moe", {DType::kMXFP4, Mix::kExperts}, 38},
};

// Returns whether the layer is in the first or last eighth, or is every third between.
bool IsSensitiveLayer(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

// Returns the number in "blk.12.…", or -1.
int LayerOf(std::string_view name) {
  constexpr std::string_view kBlock = "blk.";
  return name.starts_with(kBlock) ? std::atoi(name.data() + kBlock.size()) : -1;
}

DType WithoutFallback(const WeightScheme& scheme, const MatrixPlace& matrix) {
  if (scheme.mix == Mix::kPure) return scheme.type;
  const std::string_view name = matrix.name;
  if (scheme.mix == Mix::kExperts) {
    return name.find("_exps.") != name.npos ? scheme.type : DType::kQ8_0;
  }
  if (name == "output.weight" || (matrix.tied && name == "token_embd.weight")) {
    return DType::kQ6_K;
  }
  const bool sensitive = name.find("attn_v") != name.npos || name.find("ffn_down") != name.npos;
  return sensitive && IsSensitiveLayer(LayerOf(name), matrix.layers) ? DType::kQ6_K : scheme.type;
}

DType Fallback(DType type) {
  switch (type) {
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kIQ4_XS: return DType::kIQ4_NL;
    case DType::kQ4_K: return DType::kQ5_0;
    case DType::kQ5_K: return DType::kQ5_1;
    case DType::kQ6_K: return DType::kQ8_0;
    default: return type;
  }
}

}  // namespace

Result<WeightScheme> ParseWeightScheme(const std::string& name) {
  std::string known;
  for (const Named& named : kSchemes) {
    if (named.name == name) return named.scheme;
    known += StrCat(known.empty() ? "" : ", ", named.name);
  }
  return Status(StatusCode::kInvalidArgument,
                StrCat("weight type ", Quoted(name), " is not known; known are: ", known));
}

std::uint32_t FileTypeOf(const WeightScheme& scheme) {
  for (const Named& named : kSchemes) {
    if (named.scheme.type == scheme.type && named.scheme.mix == scheme.mix) return named.file_type;
  }
  return 0;
}

DType TypeOfMatrix(const WeightScheme& scheme, const MatrixPlace& matrix) {
  const DType type = WithoutFallback(scheme, matrix);
  return matrix.inputs % InfoOf(type).block_size == 0 ? type : Fallback(type);
}

}  // namespace kvcache::make_model
