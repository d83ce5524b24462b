// RoPE's settings in config.json. Two styles: rope_theta with rope_scaling, or rope_parameters.
// Source: transformers, modeling_rope_utils; the equations of YaRN and of Llama 3.1.
#include <algorithm>
#include <numbers>
#include <utility>

#include "base/arithmetic/doubles.h"
#include "base/errors.h"
#include "convert/hf_import.h"

namespace kvcache {
namespace {

constexpr HfRange kFactor{1.0, 1e6, "a number from 1 to 1e6"};
constexpr HfRange kShare{1e-30, 1.0, "a number above 0, at most 1"};

// Returns a positive number that must be there.
Result<double> Positive(const HfConfig& settings, std::string_view key) {
  if (!settings.Has(key)) return settings.Refuse(key, "must be a number above 0");
  return settings.FloatOr(key, 0.0, kHfPositive);
}

Result<double> Factor(const HfConfig& settings) {
  if (!settings.Has("factor")) return settings.Refuse("factor", "must be a number from 1");
  return settings.FloatOr("factor", 0.0, kFactor);
}

Result<std::int64_t> OriginalContext(const HfConfig& settings, std::int64_t context) {
  return settings.IntOr("original_max_position_embeddings", context, 1, std::int64_t{1} << 28);
}

// Plans the divisors of the frequencies: 1 for pairs that rotate often within the original context,
// the factor for those that rotate seldom.
Status AddLlama3(HfImport& import, const HfRope& rope, std::int64_t dims, std::int64_t context) {
  KVCACHE_ASSIGN_OR_RETURN(const double factor, Factor(rope.settings));
  KVCACHE_ASSIGN_OR_RETURN(const double low, Positive(rope.settings, "low_freq_factor"));
  KVCACHE_ASSIGN_OR_RETURN(const double high, Positive(rope.settings, "high_freq_factor"));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t original, OriginalContext(rope.settings, context));
  if (high <= low) {
    return rope.settings.Refuse("high_freq_factor", "must be above low_freq_factor");
  }
  std::vector<float> divisors;
  for (std::int64_t i = 0; i < dims / 2; ++i) {
    const double frequency =
        arithmetic::Power(rope.base, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
    const double rotations = static_cast<double>(original) * frequency / (2.0 * std::numbers::pi);
    const double kept = std::clamp((rotations - low) / (high - low), 0.0, 1.0);
    divisors.push_back(static_cast<float>(1.0 / ((1.0 - kept) / factor + kept)));
  }
  import.planner.Values("rope_freqs.weight", std::move(divisors));
  return Status::Ok();
}

Status AddYarn(HfImport& import, const HfRope& rope, std::int64_t context) {
  const HfConfig& settings = rope.settings;
  KVCACHE_ASSIGN_OR_RETURN(const double factor, Factor(settings));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t original, OriginalContext(settings, context));
  KVCACHE_ASSIGN_OR_RETURN(const double fast, settings.FloatOr("beta_fast", 32.0, kHfPositive));
  KVCACHE_ASSIGN_OR_RETURN(const double slow, settings.FloatOr("beta_slow", 1.0, kHfPositive));
  if (fast <= slow) {
    return settings.Refuse("beta_fast", StrCat("must be above beta_slow, which is ", slow));
  }
  KVCACHE_ASSIGN_OR_RETURN(const bool truncate, settings.BoolOr("truncate", true));
  for (const std::string_view key : {"mscale", "mscale_all_dim"}) {
    if (settings.Has(key)) return settings.Refuse(key, "this setting of YaRN is not supported");
  }
  if (!truncate) return settings.Refuse("truncate", "must be true");
  import.SetString("rope.scaling.type", "yarn");
  import.SetFloat("rope.scaling.factor", factor);
  import.Set("rope.scaling.original_context_length", original);
  if (fast != 32.0) import.SetFloat("rope.scaling.yarn_beta_fast", fast);
  if (slow != 1.0) import.SetFloat("rope.scaling.yarn_beta_slow", slow);
  if (!settings.Has("attention_factor")) return Status::Ok();
  // The file's factor is on top of the one that follows from the scaling.
  const double own = factor > 1.0 ? 1.0 + 0.1 * arithmetic::Log(factor) : 1.0;
  KVCACHE_ASSIGN_OR_RETURN(const double given,
                           settings.FloatOr("attention_factor", own, kHfPositive));
  if (given != own) import.SetFloat("rope.scaling.attn_factor", given / own);
  return Status::Ok();
}

// Returns the settings of a type of layers: rope_parameters may have an object for each type.
Result<std::optional<HfConfig>> FindSettings(const HfConfig& config, std::string_view layer_type) {
  KVCACHE_ASSIGN_OR_RETURN(auto found, config.Object("rope_parameters"));
  if (!found) return config.Object("rope_scaling");
  if (!layer_type.empty() && found->Has(layer_type)) return found->Object(layer_type);
  if (!found->HasObjects()) return found;
  return config.Refuse("rope_parameters", layer_type.empty()
                                              ? "must be the settings of all layers"
                                              : StrCat("must have settings for ", layer_type));
}

}  // namespace

Result<HfRope> ReadHfRope(const HfConfig& config, double default_base,
                          std::string_view layer_type) {
  HfRope rope{.base = default_base, .settings = config};
  const auto read = [&rope](const HfConfig& settings) -> Status {
    KVCACHE_ASSIGN_OR_RETURN(rope.base, settings.FloatOr("rope_theta", rope.base, kHfPositive));
    KVCACHE_ASSIGN_OR_RETURN(rope.rotated,
                             settings.FloatOr("partial_rotary_factor", rope.rotated, kShare));
    return Status::Ok();
  };
  KVCACHE_RETURN_IF_ERROR(read(config));
  KVCACHE_ASSIGN_OR_RETURN(auto found, FindSettings(config, layer_type));
  if (!found) return rope;
  rope.settings = *std::move(found);
  KVCACHE_RETURN_IF_ERROR(read(rope.settings));
  KVCACHE_ASSIGN_OR_RETURN(const std::string old, rope.settings.StringOr("type", "default"));
  KVCACHE_ASSIGN_OR_RETURN(rope.type, rope.settings.StringOr("rope_type", old));
  return rope;
}

Status AddHfRope(HfImport& import, const HfRope& rope, std::int64_t rotated_dims,
                 std::int64_t context) {
  import.Set("rope.dimension_count", rotated_dims);
  import.SetFloat("rope.freq_base", rope.base);
  if (rope.type == "default") return Status::Ok();
  if (rope.type == "llama3") return AddLlama3(import, rope, rotated_dims, context);
  if (rope.type == "yarn") return AddYarn(import, rope, context);
  if (rope.type != "linear") {
    return rope.settings.Refuse(rope.settings.Has("rope_type") ? "rope_type" : "type",
                                "must be default, linear, llama3 or yarn");
  }
  KVCACHE_ASSIGN_OR_RETURN(const double factor, Factor(rope.settings));
  import.SetString("rope.scaling.type", "linear");
  import.SetFloat("rope.scaling.factor", factor);
  return Status::Ok();
}

}  // namespace kvcache
