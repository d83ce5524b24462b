#include "convert/hf_import.h"

#include <nlohmann/json.hpp>

#include "base/errors.h"

namespace kvcache {
namespace {

// Bounds far above any model; products of three of them fit 64 bits.
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxSize = std::int64_t{1} << 20;
constexpr std::int64_t kMaxContext = std::int64_t{1} << 28;
constexpr HfRange kEpsilon{0.0, 0.5, "a number from 0 to 0.5"};

Result<std::int64_t> Size(const HfConfig& config, std::string_view key, std::int64_t otherwise,
                          std::int64_t max) {
  if (otherwise > 0) return config.IntOr(key, otherwise, 1, max);
  return config.Int(key, 1, max);
}

// `otherwise`: that of the class; 0: the hidden size, divided among the heads.
Result<std::int64_t> HeadDim(const HfConfig& config, const HfSizes& sizes, std::int64_t otherwise) {
  if (!config.Has("head_dim") && otherwise == 0) {
    if (sizes.hidden % (2 * sizes.heads) == 0) return sizes.hidden / sizes.heads;
    return config.Refuse("hidden_size", StrCat("must be a multiple of 2 times the ", sizes.heads,
                                               " heads, since there is no head_dim"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t head_dim, Size(config, "head_dim", otherwise, 8192));
  return head_dim % 2 == 0 ? Result<std::int64_t>(head_dim)
                           : config.Refuse("head_dim", "must be even");
}

}  // namespace

Result<HfSizes> ReadHfSizes(const HfImport& import, const HfSizes& defaults) {
  const HfConfig& config = import.config;
  HfSizes sizes;
  KVCACHE_ASSIGN_OR_RETURN(sizes.layers,
                           Size(config, "num_hidden_layers", defaults.layers, kMaxLayers));
  KVCACHE_ASSIGN_OR_RETURN(sizes.hidden, Size(config, "hidden_size", defaults.hidden, kMaxSize));
  KVCACHE_ASSIGN_OR_RETURN(sizes.heads,
                           Size(config, "num_attention_heads", defaults.heads, kMaxSize));
  const std::int64_t kv_heads = defaults.kv_heads > 0 ? defaults.kv_heads : sizes.heads;
  KVCACHE_ASSIGN_OR_RETURN(sizes.kv_heads, Size(config, "num_key_value_heads", kv_heads, kMaxSize));
  if (sizes.heads % sizes.kv_heads != 0) {
    return config.Refuse("num_key_value_heads", StrCat("must divide the ", sizes.heads, " heads"));
  }
  KVCACHE_ASSIGN_OR_RETURN(sizes.head_dim, HeadDim(config, sizes, defaults.head_dim));
  KVCACHE_ASSIGN_OR_RETURN(sizes.ffn,
                           Size(config, "intermediate_size", defaults.ffn, 8 * kMaxSize));
  KVCACHE_ASSIGN_OR_RETURN(sizes.context,
                           Size(config, "max_position_embeddings", defaults.context, kMaxContext));
  KVCACHE_ASSIGN_OR_RETURN(sizes.epsilon,
                           config.FloatOr("rms_norm_eps", defaults.epsilon, kEpsilon));
  sizes.vocabulary = import.planner.RowsOf("embed_tokens.weight");
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t vocabulary,
                           config.IntOr("vocab_size", sizes.vocabulary, 1, kMaxContext));
  if (sizes.vocabulary > 0 && vocabulary != sizes.vocabulary) {
    return config.Refuse("vocab_size", StrCat("must be ", sizes.vocabulary,
                                              ", the number of rows of embed_tokens.weight"));
  }
  return sizes;
}

void SetHfSizes(HfImport& import, const HfSizes& sizes) {
  import.Set("block_count", sizes.layers + sizes.draft_heads);
  if (sizes.draft_heads > 0) import.Set("nextn_predict_layers", sizes.draft_heads);
  import.Set("context_length", sizes.context);
  import.Set("embedding_length", sizes.hidden);
  if (!sizes.ffn_by_layer) import.Set("feed_forward_length", sizes.ffn);
  import.Set("vocab_size", sizes.vocabulary);
  import.Set("attention.head_count", sizes.heads);
  import.SetFloat("attention.layer_norm_rms_epsilon", sizes.epsilon);
}

void SetHfHeads(HfImport& import, const HfSizes& sizes) {
  import.Set("attention.head_count_kv", sizes.kv_heads);
  import.Set("attention.key_length", sizes.head_dim);
  import.Set("attention.value_length", sizes.head_dim);
}

Status CheckHfActivation(const HfConfig& config, std::string_view key, std::string_view expected) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string found, config.StringOr(key, expected));
  return found == expected ? Status::Ok() : config.Refuse(key, StrCat("must be ", expected));
}

Status CheckNoHfList(const HfConfig& config, std::string_view key) {
  const nlohmann::json* list = config.Find(key);
  const bool none = list == nullptr || (list->is_array() && list->empty());
  return none ? Status::Ok() : config.Refuse(key, "must be an empty array");
}

Status PlanHfEnds(HfImport& import, const HfSizes& sizes, bool tied_default,
                  ValueChange norm_change) {
  HfPlanner& planner = import.planner;
  // A class without a head has no output of its own, whatever its config.json says.
  const bool has_no_head = import.hf_class.ends_with("Model") && !planner.Has("lm_head.weight");
  KVCACHE_ASSIGN_OR_RETURN(bool tied, import.config.BoolOr("tie_word_embeddings", tied_default));
  tied = tied || has_no_head;
  planner.Matrix("token_embd.weight", "embed_tokens.weight", sizes.hidden, sizes.vocabulary);
  planner.Vector("output_norm.weight", "norm.weight", sizes.hidden, {.change = norm_change});
  if (tied && planner.Has("lm_head.weight")) {
    // Some programs write the shared matrix twice.
    if (!planner.AreEqual("lm_head.weight", "embed_tokens.weight")) {
      return import.config.Refuse("tie_word_embeddings",
                                  "must be false, as lm_head.weight differs from "
                                  "embed_tokens.weight");
    }
    planner.Ignore("lm_head.weight");
  } else if (!tied) {
    if (!planner.Has("lm_head.weight")) {
      return import.config.Refuse("tie_word_embeddings",
                                  "must be true, as lm_head.weight is missing from the weights");
    }
    planner.Matrix("output.weight", "lm_head.weight", sizes.hidden, sizes.vocabulary);
  }
  return Status::Ok();
}

}  // namespace kvcache
