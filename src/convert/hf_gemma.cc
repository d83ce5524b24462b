// Gemma 2, Gemma 3, and EmbeddingGemma, whose tokens see all others. The published norms lack a 1, which the file's have. query_pre_attn_scalar
// becomes attention.scale if it differs from the head size.
#include <cmath>

#include "base/errors.h"
#include "convert/hf_import.h"
#include "convert/hf_windows.h"

namespace kvcache {
namespace {

struct GemmaRules {
  HfSizes defaults;
  std::int64_t period;  // every period-th layer has no window
  int layers_of_27b;    // a reader that finds no attention.scale takes it from this number
  double rope_base;
  bool head_norms;
};

GemmaRules RulesOf(std::string_view architecture) {
  HfSizes sizes{.layers = 26,
                .hidden = 2304,
                .heads = 8,
                .kv_heads = 4,
                .head_dim = 256,
                .ffn = 9216,
                .context = 8192};
  if (architecture == "gemma2") return {sizes, 2, 46, 10000.0, false};
  sizes.context = architecture == "gemma-embedding" ? 2048 : 131072;
  return {sizes, 6, 62, 1e6, true};
}

Status AddScale(HfImport& import, const HfSizes& sizes, const GemmaRules& rules) {
  KVCACHE_ASSIGN_OR_RETURN(const double scalar,
                           import.config.FloatOr("query_pre_attn_scalar", 256.0, kHfPositive));
  const bool usual = scalar == static_cast<double>(sizes.head_dim);
  if (!usual || sizes.layers == rules.layers_of_27b) {
    import.SetFloat("attention.scale", 1.0 / std::sqrt(scalar));
  }
  return Status::Ok();
}

Status AddCap(HfImport& import, std::string_view name, double otherwise) {
  // A null says that there is no cap; a missing key means the default of the class.
  if (import.config.HasNull(name)) otherwise = 0.0;
  KVCACHE_ASSIGN_OR_RETURN(const double cap,
                           import.config.FloatOr(name, otherwise, kHfNotNegative));
  import.SetFloat(name, cap);
  return Status::Ok();
}

Status AddGemma2(HfImport& import, const HfRope& rope, const HfSizes& sizes) {
  KVCACHE_RETURN_IF_ERROR(AddHfRope(import, rope, sizes.head_dim, sizes.context));
  KVCACHE_RETURN_IF_ERROR(AddCap(import, "attn_logit_softcapping", 50.0));
  return AddCap(import, "final_logit_softcapping", 30.0);
}

Status AddGemma3(HfImport& import, const HfRope& rope, const HfSizes& sizes) {
  const HfConfig& config = import.config;
  KVCACHE_RETURN_IF_ERROR(AddHfRope(import, rope, sizes.head_dim, sizes.context));
  KVCACHE_ASSIGN_OR_RETURN(double window_base,
                           config.FloatOr("rope_local_base_freq", 10000.0, kHfPositive));
  KVCACHE_ASSIGN_OR_RETURN(const auto parameters, config.Object("rope_parameters"));
  if (parameters && (parameters->HasObjects() || parameters->Has("sliding_attention"))) {
    KVCACHE_ASSIGN_OR_RETURN(const HfRope window,
                             ReadHfRope(config, window_base, "sliding_attention"));
    if (window.type != "default") return window.settings.Refuse("rope_type", "must be default");
    window_base = window.base;
  }
  if (window_base != 10000.0) import.SetFloat("rope.freq_base_swa", window_base);
  if (config.Has("attn_logit_softcapping")) {
    return config.Refuse("attn_logit_softcapping", "must be null");
  }
  if (!config.Has("final_logit_softcapping")) return Status::Ok();
  return AddCap(import, "final_logit_softcapping", 0.0);
}

void PlanLayer(HfPlanner& planner, const HfSizes& sizes, const GemmaRules& rules,
               std::int64_t layer) {
  const std::string from = StrCat("layers.", layer, ".");
  const std::string to = StrCat("blk.", layer, ".");
  const std::int64_t queries = sizes.heads * sizes.head_dim;
  const std::int64_t keys = sizes.kv_heads * sizes.head_dim;
  const auto norm = [&](const char* name, const char* source, std::int64_t size) {
    planner.Vector(StrCat(to, name, ".weight"), StrCat(from, source, ".weight"), size,
                   {.change = ValueChange::kAddOne});
  };
  const auto matrix = [&](const char* name, const char* source, std::int64_t inputs,
                          std::int64_t outputs) {
    planner.Matrix(StrCat(to, name, ".weight"), StrCat(from, source, ".weight"), inputs, outputs);
  };
  norm("attn_norm", "input_layernorm", sizes.hidden);
  matrix("attn_q", "self_attn.q_proj", sizes.hidden, queries);
  matrix("attn_k", "self_attn.k_proj", sizes.hidden, keys);
  matrix("attn_v", "self_attn.v_proj", sizes.hidden, keys);
  matrix("attn_output", "self_attn.o_proj", queries, sizes.hidden);
  if (rules.head_norms) {
    norm("attn_q_norm", "self_attn.q_norm", sizes.head_dim);
    norm("attn_k_norm", "self_attn.k_norm", sizes.head_dim);
  }
  norm("post_attention_norm", "post_attention_layernorm", sizes.hidden);
  norm("ffn_norm", "pre_feedforward_layernorm", sizes.hidden);
  matrix("ffn_gate", "mlp.gate_proj", sizes.hidden, sizes.ffn);
  matrix("ffn_up", "mlp.up_proj", sizes.hidden, sizes.ffn);
  matrix("ffn_down", "mlp.down_proj", sizes.ffn, sizes.hidden);
  norm("post_ffw_norm", "post_feedforward_layernorm", sizes.hidden);
}

}  // namespace

Status PlanHfGemma(HfImport& import) {
  const GemmaRules rules = RulesOf(import.architecture);
  const HfConfig& config = import.config;
  KVCACHE_RETURN_IF_ERROR(CheckHfActivation(config, "hidden_activation", "gelu_pytorch_tanh"));
  KVCACHE_ASSIGN_OR_RETURN(const bool sees_all,
                           config.BoolOr("use_bidirectional_attention", false));
  const bool is_encoder = import.architecture == "gemma-embedding";
  if (sees_all != is_encoder) {
    return config.Refuse("use_bidirectional_attention",
                         StrCat("must be ", is_encoder ? "true" : "false"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const HfSizes sizes, ReadHfSizes(import, rules.defaults));
  SetHfSizes(import, sizes);
  SetHfHeads(import, sizes);
  KVCACHE_RETURN_IF_ERROR(AddScale(import, sizes, rules));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t window,
                           config.IntOr("sliding_window", 4096, 1, std::int64_t{1} << 30));
  import.Set("attention.sliding_window", window);
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<bool> windowed,
                           ReadHfWindows(config, sizes.layers, rules.period));
  SetHfWindows(import, windowed, rules.period);
  KVCACHE_ASSIGN_OR_RETURN(const HfRope rope,
                           ReadHfRope(config, rules.rope_base, "full_attention"));
  const auto add = import.architecture == "gemma2" ? AddGemma2 : AddGemma3;
  KVCACHE_RETURN_IF_ERROR(add(import, rope, sizes));
  KVCACHE_RETURN_IF_ERROR(PlanHfEnds(import, sizes, true, ValueChange::kAddOne));
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    PlanLayer(import.planner, sizes, rules, layer);
  }
  return Status::Ok();
}

}  // namespace kvcache
