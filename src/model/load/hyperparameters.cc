#include "model/load/hyperparameters.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

// Bounds far above any model. Products of two of them stay far inside 64 bits.
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHiddenSize = 1 << 20;
constexpr std::int64_t kMaxVocabulary = 1 << 24;
constexpr std::int64_t kMaxExperts = 1 << 16;

// The vocabulary's size is the number of rows of the embedding: files may lack `vocab_size`.
Result<int> VocabularySize(const GgufFile& file) {
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) {
    return Corrupt("tensor 'token_embd.weight' is missing");
  }
  if (embedding->dims[1] < 1 || embedding->dims[1] > kMaxVocabulary) {
    return Corrupt(StrCat("tensor 'token_embd.weight' has ", embedding->dims[1],
                          " rows; must be 1 to ", kMaxVocabulary));
  }
  return static_cast<int>(embedding->dims[1]);
}

Status CheckHeads(const LayerParams& params) {
  for (std::size_t i = 0; i < params.heads.size(); ++i) {
    if (params.kv_heads[i] == 0) continue;  // a recurrent layer
    if (params.heads[i] % params.kv_heads[i] != 0) {
      return Corrupt(StrCat("layer ", i, " has ", params.heads[i],
                            " heads; must be a multiple of its ", params.kv_heads[i], " KV heads"));
    }
  }
  return Status::Ok();
}

Status CheckEqualHeads(const LayerParams& params) {
  if (std::ranges::adjacent_find(params.kv_heads, std::not_equal_to<>()) == params.kv_heads.end()) {
    return Status::Ok();
  }
  return Unsupported("layers of an encoder differ in KV heads; all must have as many");
}

Status ReadHeadSizes(KeyReader& keys, LayerParams* params) {
  const int most_heads = std::ranges::max(params->heads);
  if (most_heads == 0) {  // no layer has attention
    keys.IgnoreAll("attention.key_length");
    keys.IgnoreAll("attention.value_length");
    params->k_dim = params->v_dim = 1;
    return Status::Ok();
  }
  const int even_split = params->hidden_size / most_heads;
  KVCACHE_ASSIGN_OR_RETURN(params->k_dim, keys.IntOr("attention.key_length", 8192, even_split));
  KVCACHE_ASSIGN_OR_RETURN(params->v_dim, keys.IntOr("attention.value_length", 8192, even_split));
  if (params->k_dim >= 1) return Status::Ok();
  return Corrupt(StrCat(keys.Key("embedding_length"), " is ", params->hidden_size,
                        "; must be at least the number of heads, ", most_heads));
}

Status ReadNormAndScale(KeyReader& keys, LayerKinds kinds, LayerParams* params) {
  const std::string_view epsilon_key = params->norm_kind == NormKind::kRms
                                           ? "attention.layer_norm_rms_epsilon"
                                           : "attention.layer_norm_epsilon";
  KVCACHE_ASSIGN_OR_RETURN(const double epsilon, keys.Float(epsilon_key));
  if (!(epsilon >= 0.0 && epsilon < 1.0)) {
    return Corrupt(
        StrCat(keys.Key(epsilon_key), " is ", epsilon, "; must be at least 0 and below 1"));
  }
  params->norm_epsilon = static_cast<float>(epsilon);
  KVCACHE_ASSIGN_OR_RETURN(const double scale,
                           keys.FloatOr("attention.scale", 1.0 / std::sqrt(params->k_dim)));
  params->attention_scale = static_cast<float>(scale);
  params->is_encoder = kinds == LayerKinds::kEncoder;
  KVCACHE_ASSIGN_OR_RETURN(const bool causal, keys.BoolOr("attention.causal", !params->is_encoder));
  return causal != params->is_encoder ? Status::Ok() : keys.Unsupported("attention.causal");
}

Status ReadGate(KeyReader& keys, const ExpertRules& rules, ExpertParams* experts) {
  // Values of the key.
  constexpr std::int64_t kSoftmax = 1;
  constexpr std::int64_t kSigmoid = 2;
  KVCACHE_ASSIGN_OR_RETURN(const int gating, keys.IntOr("expert_gating_func", 255, kSoftmax));
  if (gating == kSigmoid && rules.sigmoid) {
    experts->gate = RouterOptions::Gate::kSigmoid;
    return Status::Ok();
  }
  return gating == kSoftmax ? Status::Ok() : keys.Unsupported("expert_gating_func");
}

Status ReadGroups(KeyReader& keys, ExpertParams* experts) {
  KVCACHE_ASSIGN_OR_RETURN(experts->groups, keys.IntOr("expert_group_count", experts->count, 1));
  KVCACHE_ASSIGN_OR_RETURN(experts->groups_used,
                           keys.IntOr("expert_group_used_count", experts->groups, experts->groups));
  const int size = experts->count / experts->groups;
  if (experts->count % experts->groups == 0 && experts->used <= experts->groups_used * size) {
    return Status::Ok();
  }
  return Corrupt(StrCat(keys.Key("expert_group_count"), " is ", experts->groups, " with ",
                        experts->groups_used, " used, for ", experts->used, " of ", experts->count,
                        " experts"));
}

// Reads a size of each layer. A missing key is 0 for all layers if `optional`.
Result<std::vector<int>> LayerSizes(KeyReader& keys, std::string_view key, std::int64_t limit,
                                    int blocks, bool optional) {
  const GgufEntry* const entry = keys.file().Find(keys.Key(key));
  if (!optional || (entry != nullptr && entry->type == GgufType::kArray)) {
    return keys.PerLayer(key, limit, blocks, optional ? 0 : 1);
  }
  KVCACHE_ASSIGN_OR_RETURN(const int size, keys.IntOrZero(key, limit));
  return std::vector<int>(static_cast<std::size_t>(blocks), size);
}

Status ReadLayerSizes(KeyReader& keys, LayerKinds kinds, int blocks, LayerParams* params) {
  const bool partial = kinds == LayerKinds::kPartial;
  KVCACHE_ASSIGN_OR_RETURN(
      params->heads, LayerSizes(keys, "attention.head_count", kMaxHiddenSize, blocks, partial));
  params->kv_heads = params->heads;
  if (keys.Has("attention.head_count_kv")) {
    const int min = partial || kinds == LayerKinds::kHybrid ? 0 : 1;
    KVCACHE_ASSIGN_OR_RETURN(params->kv_heads,
                             keys.PerLayer("attention.head_count_kv", kMaxHiddenSize, blocks, min));
  }
  KVCACHE_ASSIGN_OR_RETURN(
      params->ffn, LayerSizes(keys, "feed_forward_length", 8 * kMaxHiddenSize, blocks, partial));
  return Status::Ok();
}

}  // namespace

Result<LayerParams> ReadLayerParams(KeyReader& keys, LayerKinds kinds, NormKind norm) {
  LayerParams params;
  params.norm_kind = norm;
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view name,
                           keys.file().GetStringOr("general.name", ""));
  params.name = std::string(name);
  KVCACHE_ASSIGN_OR_RETURN(const int blocks, keys.Int("block_count", kMaxLayers));
  // The last blocks may be heads that predict further tokens. No layer is one of them.
  const bool is_head = kinds == LayerKinds::kDraftHead;
  KVCACHE_ASSIGN_OR_RETURN(params.nextn_layers,
                           keys.IntOrZero("nextn_predict_layers", is_head ? blocks : blocks - 1));
  if (is_head && params.nextn_layers != blocks) return keys.Unsupported("nextn_predict_layers");
  params.layers = is_head ? blocks : blocks - params.nextn_layers;
  KVCACHE_ASSIGN_OR_RETURN(params.hidden_size, keys.Int("embedding_length", kMaxHiddenSize));
  KVCACHE_ASSIGN_OR_RETURN(params.context_length, keys.Int("context_length", 1 << 28));
  KVCACHE_ASSIGN_OR_RETURN(params.vocabulary, VocabularySize(keys.file()));
  KVCACHE_RETURN_IF_ERROR(ReadLayerSizes(keys, kinds, blocks, &params));
  for (std::vector<int>* of_blocks : {&params.heads, &params.kv_heads, &params.ffn}) {
    of_blocks->resize(static_cast<std::size_t>(params.layers));
  }
  KVCACHE_RETURN_IF_ERROR(CheckHeads(params));
  KVCACHE_RETURN_IF_ERROR(ReadHeadSizes(keys, &params));
  KVCACHE_RETURN_IF_ERROR(ReadNormAndScale(keys, kinds, &params));
  if (kinds == LayerKinds::kEncoder) KVCACHE_RETURN_IF_ERROR(CheckEqualHeads(params));
  return params;
}

Result<ExpertParams> ReadExpertParams(KeyReader& keys, const LayerParams& params,
                                      const ExpertRules& rules) {
  ExpertParams experts;
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t count,
                           keys.file().GetIntOr(keys.Key("expert_count"), 0));
  if (count == 0) return experts;
  KVCACHE_ASSIGN_OR_RETURN(experts.count, keys.Int("expert_count", kMaxExperts));
  KVCACHE_ASSIGN_OR_RETURN(experts.used, keys.Int("expert_used_count", experts.count));
  KVCACHE_ASSIGN_OR_RETURN(
      experts.ffn, keys.IntOr("expert_feed_forward_length", 8 * kMaxHiddenSize, params.ffn[0]));
  KVCACHE_ASSIGN_OR_RETURN(experts.renormalize,
                           keys.BoolOr("expert_weights_norm", rules.renormalize));
  KVCACHE_ASSIGN_OR_RETURN(const double scale, keys.FloatOr("expert_weights_scale", 1.0));
  experts.weights_scale = scale == 0.0 ? 1.0f : static_cast<float>(scale);
  KVCACHE_RETURN_IF_ERROR(ReadGate(keys, rules, &experts));
  if (rules.groups) KVCACHE_RETURN_IF_ERROR(ReadGroups(keys, &experts));
  return experts;
}

Status ReadDenseAndShared(KeyReader& keys, const LayerParams& params, ExpertParams* experts) {
  KVCACHE_ASSIGN_OR_RETURN(experts->first_layer,
                           keys.IntOrZero("leading_dense_block_count", params.layers));
  KVCACHE_ASSIGN_OR_RETURN(const int shared, keys.IntOrZero("expert_shared_count", 1 << 10));
  experts->shared_ffn = std::int64_t{shared} * experts->ffn;
  return Status::Ok();
}

Result<float> ReadSoftCap(KeyReader& keys, std::string_view key, double otherwise) {
  KVCACHE_ASSIGN_OR_RETURN(const double cap, keys.FloatOr(key, otherwise));
  if (cap >= 0.0 && cap < 1e30) return static_cast<float>(cap);
  return Corrupt(StrCat(keys.Key(key), " is ", cap, "; must be at least 0 and below 1e30"));
}

}  // namespace kvcache
