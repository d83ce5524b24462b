#include "convert/weight_scheme.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

struct Named {
  std::string_view name;
  WeightScheme scheme;
};

constexpr std::array kSchemes = {
    Named{"f32", {DType::kF32, Mixture::kNone, 0}},
    Named{"f16", {DType::kF16, Mixture::kNone, 1}},
    Named{"bf16", {DType::kBF16, Mixture::kNone, 32}},
    Named{"q4_0", {DType::kQ4_0, Mixture::kNone, 2}},
    Named{"q4_1", {DType::kQ4_1, Mixture::kNone, 3}},
    Named{"q5_0", {DType::kQ5_0, Mixture::kNone, 8}},
    Named{"q5_1", {DType::kQ5_1, Mixture::kNone, 9}},
    Named{"q8_0", {DType::kQ8_0, Mixture::kNone, 7}},
    Named{"q4_k", {DType::kQ4_K, Mixture::kNone, 14}},
    Named{"q4_k_s", {DType::kQ4_K, Mixture::kSmall, 14}},
    Named{"q4_k_m", {DType::kQ4_K, Mixture::kMedium, 15}},
    Named{"q5_k", {DType::kQ5_K, Mixture::kNone, 16}},
    Named{"q5_k_s", {DType::kQ5_K, Mixture::kSmall, 16}},
    Named{"q5_k_m", {DType::kQ5_K, Mixture::kMedium, 17}},
    Named{"q6_k", {DType::kQ6_K, Mixture::kNone, 18}},
    Named{"q2_k", {DType::kQ2_K, Mixture::kNone, 10}},
    Named{"q3_k", {DType::kQ3_K, Mixture::kNone, 11}},
    Named{"iq4_nl", {DType::kIQ4_NL, Mixture::kNone, 25}},
    Named{"iq4_xs", {DType::kIQ4_XS, Mixture::kNone, 30}},
    Named{"mxfp4", {DType::kMXFP4, Mixture::kNone, 38}},
};

bool Contains(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

// What the rules read from the list of tensors.
struct ModelTraits {
  int layers = 0;
  int values = 0;  // matrices that hold an attn_v
  std::int64_t experts = 0;
  bool tied = true;
  bool grouped = false;  // attn_k has fewer rows than attn_q
};

// Returns the number in "blk.12.…", or -1.
int LayerOf(std::string_view name) {
  constexpr std::string_view kBlock = "blk.";
  return name.starts_with(kBlock) ? std::atoi(std::string(name.substr(kBlock.size())).c_str()) : -1;
}

ModelTraits TraitsOf(const std::vector<TensorPlan>& plans) {
  ModelTraits traits;
  std::int64_t queries = 0;
  for (const TensorPlan& plan : plans) {
    const std::string_view name = plan.name;
    traits.layers = std::max(traits.layers, LayerOf(name) + 1);
    if (name == "output.weight") traits.tied = false;
    if (Contains(name, "attn_v.weight") || Contains(name, "attn_qkv.weight") ||
        Contains(name, "attn_kv_b.weight")) {
      ++traits.values;
    }
    if (Contains(name, "_exps.weight") && plan.dims.size() == 3) traits.experts = plan.dims[2];
    if (Contains(name, "attn_q.weight") && plan.dims.size() == 2) queries = plan.dims[1];
    if (Contains(name, "attn_k.weight") && plan.dims.size() == 2) {
      traits.grouped = plan.dims[1] < queries;
    }
  }
  return traits;
}

// Returns whether the layer is in the first or last eighth, or is every third between.
bool GetsMoreBits(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

// Chooses the types of a mixture. The object counts the matrices that it has seen.
class MixtureRules {
 public:
  MixtureRules(const WeightScheme& scheme, const ModelTraits& traits)
      : scheme_(scheme), traits_(traits), eight_experts_(traits.experts == 8) {}

  DType TypeOf(std::string_view name) {
    if (name == "output.weight" || (traits_.tied && name == "token_embd.weight")) {
      return DType::kQ6_K;
    }
    if (Contains(name, "attn_v.weight")) return OfValues();
    if (Contains(name, "attn_k.weight")) return eight_experts_ ? DType::kQ8_0 : scheme_.type;
    if (Contains(name, "ffn_down")) return OfDown(LayerOf(name));
    const bool four_bits = scheme_.type == DType::kQ4_K;
    if (Contains(name, "attn_output.weight")) {
      return eight_experts_ && four_bits ? DType::kQ5_K : scheme_.type;
    }
    if (Contains(name, "attn_qkv.weight") && scheme_.mixture == Mixture::kMedium) {
      return four_bits ? DType::kQ5_K : DType::kQ6_K;
    }
    return scheme_.type;
  }

 private:
  DType OfValues() {
    const int index = values_seen_++;
    DType type = scheme_.type;
    if (scheme_.mixture == Mixture::kMedium) {
      if (GetsMoreBits(index, traits_.values)) type = DType::kQ6_K;
    } else if (type == DType::kQ4_K && index < 4) {
      type = DType::kQ5_K;
    }
    // The 70B models: eight heads share keys and values, so these matrices are small.
    if (traits_.layers == 80 && traits_.grouped && type == DType::kQ4_K) type = DType::kQ5_K;
    return eight_experts_ ? DType::kQ8_0 : type;
  }

  DType OfDown(int layer) const {
    if (scheme_.mixture == Mixture::kMedium) {
      return GetsMoreBits(layer, traits_.layers) ? DType::kQ6_K : scheme_.type;
    }
    const bool early = layer < traits_.layers / 8;
    return scheme_.type == DType::kQ4_K && early ? DType::kQ5_K : scheme_.type;
  }

  const WeightScheme& scheme_;
  const ModelTraits& traits_;
  const bool eight_experts_;
  int values_seen_ = 0;
};

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

bool IsWhole(DType type, std::int64_t row) {
  return row % InfoOf(type).block_size == 0;
}

bool IsFloatType(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16;
}

}  // namespace

Result<WeightScheme> ParseWeightScheme(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  std::string known;
  for (const Named& each : kSchemes) {
    if (each.name == lower) return each.scheme;
    known += StrCat(known.empty() ? "" : ", ", each.name);
  }
  return InvalidArgument(StrCat(Quoted(name), " is no type of weights; there are ", known));
}

bool IsQuantizable(std::string_view name, std::size_t rank) {
  if (rank < 2 || !name.ends_with(".weight")) return false;
  static constexpr std::array kKept = {"norm",        "ffn_gate_inp",         "conv",  "rel_b",
                                       "rope",        "per_layer_model_proj", "ssm_a", "ssm_d.",
                                       "token_types", "position_embd"};
  return std::none_of(kKept.begin(), kKept.end(),
                      [&](std::string_view part) { return Contains(name, part); });
}

void ApplyScheme(const WeightScheme& scheme, std::vector<TensorPlan>* plans) {
  const ModelTraits traits = TraitsOf(*plans);
  MixtureRules rules(scheme, traits);
  for (TensorPlan& plan : *plans) {
    if (!IsQuantizable(plan.name, plan.dims.size())) continue;
    const bool mixed = scheme.mixture != Mixture::kNone;
    DType type = mixed ? rules.TypeOf(plan.name) : scheme.type;
    if (!IsWhole(type, plan.dims[0])) type = Fallback(type);
    if (IsFloatType(plan.type) && IsWhole(type, plan.dims[0])) plan.type = GgmlTypeOf(type);
  }
}

}  // namespace kvcache
