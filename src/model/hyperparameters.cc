#include "model/hyperparameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvcache {
namespace {

// Bounds far above any model, so that products of two of them stay far inside 64 bits.
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxVocabulary = 1 << 24;

// Reads `prefix`-ed keys with range checks.
class KeyReader {
 public:
  KeyReader(const GgufFile& file, std::string_view prefix)
      : file_(file), prefix_(std::string(prefix) + ".") {}

  std::string Key(std::string_view key) const { return prefix_ + std::string(key); }
  bool Has(std::string_view key) const { return file_.Find(Key(key)) != nullptr; }

  Result<int> Int(std::string_view key, std::int64_t limit) const {
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t value, file_.GetInt(Key(key)));
    return InRange(key, value, limit);
  }

  Result<int> IntOr(std::string_view key, std::int64_t limit, int otherwise) const {
    return Has(key) ? Int(key, limit) : Result<int>(otherwise);
  }

  // One value for all layers, or an array with one each.
  Result<std::vector<int>> PerLayer(std::string_view key, std::int64_t limit, int layers) const {
    const GgufEntry* entry = file_.Find(Key(key));
    if (entry == nullptr || entry->type != GgufType::kArray) {
      KVCACHE_ASSIGN_OR_RETURN(const int value, Int(key, limit));
      return std::vector<int>(static_cast<std::size_t>(layers), value);
    }
    KVCACHE_ASSIGN_OR_RETURN(const GgufInts array, file_.GetInts(Key(key)));
    if (array.size() != static_cast<std::size_t>(layers)) {
      return Status(StatusCode::kCorrupt, Key(key) + " has " + std::to_string(array.size()) +
                                              " values for " + std::to_string(layers) + " layers");
    }
    std::vector<int> values;
    for (const std::int64_t value : array) {
      KVCACHE_ASSIGN_OR_RETURN(const int checked, InRange(key, value, limit));
      values.push_back(checked);
    }
    return values;
  }

 private:
  Result<int> InRange(std::string_view key, std::int64_t value, std::int64_t limit) const {
    if (value >= 1 && value <= limit) return static_cast<int>(value);
    return Status(StatusCode::kCorrupt, Key(key) + " is " + std::to_string(value) +
                                            ", expected 1 to " + std::to_string(limit));
  }

  const GgufFile& file_;
  std::string prefix_;
};

// The vocabulary's size is that of the embedding: `vocab_size` may be missing in files.
Result<int> VocabularySize(const GgufFile& file) {
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) {
    return Status(StatusCode::kCorrupt, "tensor 'token_embd.weight' is missing");
  }
  if (embedding->dims[1] < 1 || embedding->dims[1] > kMaxVocabulary) {
    return Status(StatusCode::kCorrupt,
                  "tensor 'token_embd.weight' has " + std::to_string(embedding->dims[1]) + " rows");
  }
  return static_cast<int>(embedding->dims[1]);
}

Status CheckHeads(const LayerParams& params) {
  for (std::size_t i = 0; i < params.heads.size(); ++i) {
    if (params.heads[i] % params.kv_heads[i] != 0) {
      return {StatusCode::kCorrupt, "layer " + std::to_string(i) + " has " +
                                        std::to_string(params.heads[i]) +
                                        " heads, not a multiple of its " +
                                        std::to_string(params.kv_heads[i]) + " KV heads"};
    }
  }
  return Status::Ok();
}

Status ReadHeadSizes(const KeyReader& keys, LayerParams* params) {
  const int even_split = params->width / params->heads[0];
  KVCACHE_ASSIGN_OR_RETURN(params->k_dim, keys.IntOr("attention.key_length", 8192, even_split));
  KVCACHE_ASSIGN_OR_RETURN(params->v_dim, keys.IntOr("attention.value_length", 8192, even_split));
  if (params->k_dim < 1) {
    return {StatusCode::kCorrupt, keys.Key("embedding_length") + " is " +
                                      std::to_string(params->width) + ", less than the " +
                                      std::to_string(params->heads[0]) + " heads"};
  }
  KVCACHE_ASSIGN_OR_RETURN(params->rope_dims,
                           keys.IntOr("rope.dimension_count", params->k_dim, params->k_dim));
  if (params->rope_dims % 2 != 0) {
    return {StatusCode::kCorrupt, keys.Key("rope.dimension_count") + " is " +
                                      std::to_string(params->rope_dims) + ", not even"};
  }
  return Status::Ok();
}

Status ReadRope(const GgufFile& file, const KeyReader& keys, LayerParams* params) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view scaling,
                           file.GetStringOr(keys.Key("rope.scaling.type"), "none"));
  if (scaling != "none") {
    return {StatusCode::kUnsupported,
            keys.Key("rope.scaling.type") + " is '" + std::string(scaling) + "': not served"};
  }
  KVCACHE_ASSIGN_OR_RETURN(const double base, file.GetFloatOr(keys.Key("rope.freq_base"), 1e4));
  if (!(base > 0.0) || !std::isfinite(base)) {
    return {StatusCode::kCorrupt, keys.Key("rope.freq_base") + " is not a positive number"};
  }
  for (int i = 0; i < params->rope_dims / 2; ++i) {
    params->inv_freq.push_back(
        static_cast<float>(std::pow(base, -2.0 * i / static_cast<double>(params->rope_dims))));
  }
  return Status::Ok();
}

Status ReadNormAndScale(const GgufFile& file, const KeyReader& keys, LayerParams* params) {
  const std::string key = keys.Key("attention.layer_norm_rms_epsilon");
  KVCACHE_ASSIGN_OR_RETURN(const double epsilon, file.GetFloat(key));
  if (!(epsilon >= 0.0 && epsilon < 1.0)) {
    return {StatusCode::kCorrupt, key + " is not between 0 and 1"};
  }
  params->norm_epsilon = static_cast<float>(epsilon);
  KVCACHE_ASSIGN_OR_RETURN(const double scale, file.GetFloatOr(keys.Key("attention.scale"),
                                                               1.0 / std::sqrt(params->k_dim)));
  if (!std::isfinite(scale)) {
    return {StatusCode::kCorrupt, keys.Key("attention.scale") + " is not a number"};
  }
  params->attention_scale = static_cast<float>(scale);
  return Status::Ok();
}

}  // namespace

Result<LayerParams> ReadLayerParams(const GgufFile& file, std::string_view architecture) {
  const KeyReader keys(file, architecture);
  LayerParams params;
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view name, file.GetStringOr("general.name", ""));
  params.name = std::string(name);
  KVCACHE_ASSIGN_OR_RETURN(params.layers, keys.Int("block_count", kMaxLayers));
  KVCACHE_ASSIGN_OR_RETURN(params.width, keys.Int("embedding_length", kMaxWidth));
  KVCACHE_ASSIGN_OR_RETURN(params.context_length, keys.Int("context_length", 1 << 28));
  KVCACHE_ASSIGN_OR_RETURN(params.vocabulary, VocabularySize(file));
  KVCACHE_ASSIGN_OR_RETURN(params.heads,
                           keys.PerLayer("attention.head_count", kMaxWidth, params.layers));
  params.kv_heads = params.heads;
  if (keys.Has("attention.head_count_kv")) {
    KVCACHE_ASSIGN_OR_RETURN(params.kv_heads,
                             keys.PerLayer("attention.head_count_kv", kMaxWidth, params.layers));
  }
  KVCACHE_ASSIGN_OR_RETURN(params.ffn,
                           keys.PerLayer("feed_forward_length", 8 * kMaxWidth, params.layers));
  KVCACHE_RETURN_IF_ERROR(CheckHeads(params));
  KVCACHE_RETURN_IF_ERROR(ReadHeadSizes(keys, &params));
  KVCACHE_RETURN_IF_ERROR(ReadRope(file, keys, &params));
  KVCACHE_RETURN_IF_ERROR(ReadNormAndScale(file, keys, &params));
  return params;
}

}  // namespace kvcache
