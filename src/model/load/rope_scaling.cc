#include "model/load/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/arithmetic/doubles.h"
#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

// The scaling's keys, with their default values.
struct Scaling {
  std::string_view type = "none";  // none if the factor is 1, whatever the key says
  double base = 1e4;
  double factor = 1.0;
  double attn_factor = 1.0;    // on the magnitude
  double extrapolation = 0.0;  // YaRN: factor on the ramp; 0: linear scaling
  double beta_fast = 32.0;     // rotations within the original context of the fastest scaled pair
  double beta_slow = 1.0;
  double log_multiplier = 0.0;  // part of the magnitude that the model itself cancels
  int original_context = 0;
};

Status CheckPositive(const KeyReader& keys, std::string_view key, double value) {
  if (value > 0.0) return Status::Ok();
  return Corrupt(StrCat(keys.Key(key), " is ", value, "; must be above 0"));
}

Status CheckEven(const KeyReader& keys, std::string_view key, int value) {
  if (value % 2 == 0) return Status::Ok();
  return Corrupt(StrCat(keys.Key(key), " is ", value, "; must be even"));
}

constexpr const char* kLongFactors = "rope_factors_long.weight";
constexpr const char* kShortFactors = "rope_factors_short.weight";

bool HasLongFactors(const GgufFile& file) {
  return file.FindTensor(kLongFactors) != nullptr;
}

Status ReadYarn(KeyReader& keys, Scaling* scaling) {
  KVCACHE_ASSIGN_OR_RETURN(const double extrapolation,
                           keys.FloatOr("rope.scaling.yarn_ext_factor", -1.0));
  scaling->extrapolation = extrapolation < 0.0 ? 1.0 : extrapolation;
  KVCACHE_ASSIGN_OR_RETURN(scaling->beta_fast, keys.FloatOr("rope.scaling.yarn_beta_fast", 32.0));
  KVCACHE_ASSIGN_OR_RETURN(scaling->beta_slow, keys.FloatOr("rope.scaling.yarn_beta_slow", 1.0));
  KVCACHE_RETURN_IF_ERROR(CheckPositive(keys, "rope.scaling.yarn_beta_fast", scaling->beta_fast));
  KVCACHE_RETURN_IF_ERROR(CheckPositive(keys, "rope.scaling.yarn_beta_slow", scaling->beta_slow));
  KVCACHE_ASSIGN_OR_RETURN(scaling->log_multiplier,
                           keys.FloatOr("rope.scaling.yarn_log_multiplier", 0.0));
  KVCACHE_ASSIGN_OR_RETURN(const double attn_factor,
                           keys.FloatOr("rope.scaling.yarn_attn_factor", 1.0));
  return attn_factor == 1.0 ? Status::Ok() : keys.Unsupported("rope.scaling.yarn_attn_factor");
}

Status ReadFactor(KeyReader& keys, Scaling* scaling) {
  // rope.scale_linear is the old name of rope.scaling.factor.
  KVCACHE_ASSIGN_OR_RETURN(const double linear, keys.FloatOr("rope.scale_linear", 0.0));
  KVCACHE_ASSIGN_OR_RETURN(const double factor, keys.FloatOr("rope.scaling.factor", linear));
  if (factor == 0.0) return Status::Ok();  // no scaling
  scaling->factor = factor;
  return CheckPositive(keys, "rope.scaling.factor", factor);
}

// Returns the type of a factor without a type. gpt-oss has no other than YaRN.
std::string_view DefaultType(const KeyReader& keys) {
  return keys.architecture() == "gpt-oss" ? "yarn" : "linear";
}

Result<Scaling> ReadScaling(KeyReader& keys, const LayerParams& params) {
  Scaling scaling;
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view type,
                           keys.StringOr("rope.scaling.type", DefaultType(keys)));
  KVCACHE_ASSIGN_OR_RETURN(scaling.base, keys.FloatOr("rope.freq_base", 1e4));
  KVCACHE_RETURN_IF_ERROR(CheckPositive(keys, "rope.freq_base", scaling.base));
  KVCACHE_RETURN_IF_ERROR(ReadFactor(keys, &scaling));
  KVCACHE_ASSIGN_OR_RETURN(scaling.attn_factor, keys.FloatOr("rope.scaling.attn_factor", 1.0));
  KVCACHE_ASSIGN_OR_RETURN(
      scaling.original_context,
      keys.IntOr("rope.scaling.original_context_length", 1 << 28, params.context_length));
  KVCACHE_ASSIGN_OR_RETURN([[maybe_unused]] const bool finetuned,
                           keys.BoolOr("rope.scaling.finetuned", false));
  if (type == "none") {
    scaling.factor = 1.0;
  } else if (type == "yarn") {
    KVCACHE_RETURN_IF_ERROR(ReadYarn(keys, &scaling));
    if (scaling.base <= 1.0) return keys.Unsupported("rope.freq_base");
  } else if (type != "linear" && !(type == "longrope" && HasLongFactors(keys.file()))) {
    return keys.Unsupported("rope.scaling.type");
  }
  scaling.type = scaling.factor == 1.0 ? "none" : type;
  return scaling;
}

// Hunyuan's dense models state a larger base as a factor: base · alpha^(d / (d - 2)).
Status ReadAlpha(KeyReader& keys, int dims, Scaling* scaling) {
  constexpr std::string_view kAlpha = "rope.scaling.alpha";
  if (keys.architecture() != "hunyuan-dense") return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const double alpha, keys.FloatOr(kAlpha, 0.0));
  if (alpha == 0.0 || dims <= 2) return Status::Ok();
  scaling->base *= arithmetic::Power(alpha, dims / (dims - 2.0));
  return CheckPositive(keys, kAlpha, alpha);
}

// Returns the pair, as a real number, that makes `rotations` full rotations within the original
// context.
double PairOfRotations(const Scaling& scaling, int dims, double rotations) {
  return dims * arithmetic::Log(scaling.original_context / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * arithmetic::Log(scaling.base));
}

// Returns 1 for pairs that keep their frequency, 0 for pairs whose frequency is divided by the
// factor, and the ramp's value between.
double UnscaledShare(const Scaling& scaling, int dims, int pair) {
  if (scaling.extrapolation == 0.0) return 0.0;
  const double low = std::max(0.0, std::floor(PairOfRotations(scaling, dims, scaling.beta_fast)));
  const double high =
      std::min(dims - 1.0, std::ceil(PairOfRotations(scaling, dims, scaling.beta_slow)));
  const double ramp = std::clamp((pair - low) / std::max(0.001, high - low), 0.0, 1.0);
  return (1.0 - ramp) * scaling.extrapolation;
}

double Magnitude(const Scaling& scaling) {
  if (scaling.extrapolation == 0.0 || scaling.factor <= 1.0) return scaling.attn_factor;
  const double log_factor = 0.1 * arithmetic::Log(scaling.factor);
  return scaling.attn_factor * (1.0 + log_factor) / (1.0 + scaling.log_multiplier * log_factor);
}

// Returns the divisors of the frequencies; none if the file has no such tensor.
Result<std::span<const float>> ReadDivisors(WeightReader& weights, int pairs, bool extended) {
  const char* name = "rope_freqs.weight";
  if (weights.Has(kLongFactors) || weights.Has(kShortFactors)) {
    name = extended ? kLongFactors : kShortFactors;
    weights.Ignore(extended ? kShortFactors : kLongFactors);
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::span<const float> divisors,
                           weights.FloatsIfPresent(name, pairs));
  for (std::size_t i = 0; i < divisors.size(); ++i) {
    if (std::isfinite(divisors[i]) && divisors[i] > 0.0f) continue;
    return Corrupt(StrCat("tensor '", name, "' has ", divisors[i], " at ", i, "; must be above 0"));
  }
  return divisors;
}

}  // namespace

Result<RopeTable> ReadRope(KeyReader& keys, const LayerParams& params, RopeParams::Pairing pairing,
                           WeightReader& weights) {
  RopeTable table;
  table.pairing = pairing;
  KVCACHE_ASSIGN_OR_RETURN(table.dims,
                           keys.IntOr("rope.dimension_count", params.k_dim, params.k_dim));
  KVCACHE_RETURN_IF_ERROR(CheckEven(keys, "rope.dimension_count", table.dims));
  KVCACHE_ASSIGN_OR_RETURN(Scaling scaling, ReadScaling(keys, params));
  KVCACHE_RETURN_IF_ERROR(ReadAlpha(keys, table.dims, &scaling));
  const bool extended = params.context_length > scaling.original_context;
  KVCACHE_ASSIGN_OR_RETURN(const std::span<const float> divisors,
                           ReadDivisors(weights, table.dims / 2, extended));
  for (int i = 0; i < table.dims / 2; ++i) {
    const double divisor = divisors.empty() ? 1.0 : divisors[static_cast<std::size_t>(i)];
    const double frequency = arithmetic::Power(scaling.base, -2.0 * i / table.dims) / divisor;
    const double kept = UnscaledShare(scaling, table.dims, i);
    table.inv_freq.push_back(
        static_cast<float>(frequency * (1.0 - kept) / scaling.factor + frequency * kept));
    if (std::isfinite(table.inv_freq.back())) continue;
    return Corrupt(StrCat(keys.Key("rope.scaling.factor"), " is ", scaling.factor,
                          "; too small: the frequency of pair ", i, " overflows"));
  }
  table.magnitude = static_cast<float>(Magnitude(scaling));
  table.original_context = scaling.original_context;
  return table;
}

Result<RopeTable> ReadWindowRope(KeyReader& keys, int head_dim, RopeParams::Pairing pairing,
                                 double otherwise) {
  constexpr std::string_view kBase = "rope.freq_base_swa";
  KVCACHE_ASSIGN_OR_RETURN(const double base, keys.FloatOr(kBase, otherwise));
  KVCACHE_RETURN_IF_ERROR(CheckPositive(keys, kBase, base));
  RopeTable table;
  table.pairing = pairing;
  KVCACHE_ASSIGN_OR_RETURN(table.dims, keys.IntOr("rope.dimension_count_swa", head_dim, head_dim));
  KVCACHE_RETURN_IF_ERROR(CheckEven(keys, "rope.dimension_count_swa", table.dims));
  for (int i = 0; i < table.dims / 2; ++i) {
    table.inv_freq.push_back(static_cast<float>(arithmetic::Power(base, -2.0 * i / table.dims)));
  }
  return table;
}

Result<RopeSummary> ReadRopeSummary(KeyReader& keys, const LayerParams& params) {
  KVCACHE_ASSIGN_OR_RETURN(const Scaling scaling, ReadScaling(keys, params));
  const bool divided = keys.file().FindTensor("rope_freqs.weight") != nullptr;
  return RopeSummary{
      .scaling = std::string(scaling.type == "none" && divided ? "llama3" : scaling.type),
      .factor = scaling.factor,
      .original_context = scaling.original_context};
}

}  // namespace kvcache
