#include "convert/embedding/hf_modules.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/errors.h"
#include "convert/hf_planner.h"
#include "convert/json_members.h"

namespace kvcache {
namespace {

constexpr const char* kModules = "modules.json";
constexpr std::size_t kMaxModulesBytes = std::size_t{1} << 20;
constexpr std::int64_t kMaxDenseSize = std::int64_t{1} << 20;

struct PoolingMode {
  const char* key;
  std::uint32_t number;  // of pooling_type; 0: not supported
};
constexpr std::array kModes = {
    PoolingMode{"pooling_mode_mean_tokens", 1},
    PoolingMode{"pooling_mode_cls_token", 2},
    PoolingMode{"pooling_mode_lasttoken", 3},
    PoolingMode{"pooling_mode_max_tokens", 0},
    PoolingMode{"pooling_mode_mean_sqrt_len_tokens", 0},
    PoolingMode{"pooling_mode_weightedmean_tokens", 0},
};

Status AddPooling(const HfConfig& config, HfImport& import, std::int64_t hidden) {
  std::optional<std::uint32_t> chosen;
  for (const PoolingMode& mode : kModes) {
    KVCACHE_ASSIGN_OR_RETURN(const bool is_set, config.BoolOr(mode.key, false));
    if (!is_set) continue;
    if (mode.number == 0 || chosen) {
      return config.Refuse(mode.key,
                           "one pooling must be true: the mean, the first or the last token");
    }
    chosen = mode.number;
  }
  if (!chosen) return config.Refuse("pooling_mode_mean_tokens", "one pooling must be true");
  KVCACHE_ASSIGN_OR_RETURN(const bool with_prompt, config.BoolOr("include_prompt", true));
  if (!with_prompt) return config.Refuse("include_prompt", "must be true");
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t size,
                           config.IntOr("word_embedding_dimension", hidden, 1, kMaxDenseSize));
  if (size != hidden) {
    return config.Refuse("word_embedding_dimension",
                         StrCat("must be ", hidden, ", the hidden size"));
  }
  import.Set("pooling_type", *chosen);
  import.embeds = true;
  return Status::Ok();
}

class Modules {
 public:
  Modules(const HfDirectory& directory, HfImport& import, std::int64_t hidden)
      : directory_(directory), import_(import), hidden_(hidden), size_(hidden) {}

  Result<HfModules> Read() {
    KVCACHE_ASSIGN_OR_RETURN(const nlohmann::json list,
                             directory_.ReadJson(kModules, kMaxModulesBytes));
    if (!list.is_array()) return Corrupt(Where() + " is no array");
    for (const nlohmann::json& module : list) KVCACHE_RETURN_IF_ERROR(Add(module));
    if (size_ == hidden_) return std::move(modules_);
    return Unsupported(StrCat(Where(), ": the dense layers make ", size_, " values of ", hidden_,
                              "; must make as many"));
  }

 private:
  std::string Where() const { return StrCat(directory_.path(), "/", kModules); }

  Status Add(const nlohmann::json& module) {
    const std::string type = TextOf(module, "type");
    const std::string path = TextOf(module, "path");
    const std::string kind = type.substr(type.rfind('.') + 1);
    if (kind == "Normalize") return Status::Ok();  // callers choose
    if (kind == "Transformer") {
      if (path.empty()) return Status::Ok();
      return Unsupported(StrCat(Where(), ": the model is in ", Quoted(path), "; give this folder"));
    }
    if (kind != "Pooling" && kind != "Dense") {
      return Unsupported(StrCat(Where(), ": module ", Quoted(type), " is not supported"));
    }
    KVCACHE_ASSIGN_OR_RETURN(const HfDirectory folder, directory_.Folder(path));
    KVCACHE_ASSIGN_OR_RETURN(const HfConfig config, HfConfig::Read(folder, "config.json"));
    return kind == "Pooling" ? AddPooling(config, import_, hidden_) : AddDense(folder, config);
  }

  Status AddDense(const HfDirectory& folder, const HfConfig& config) {
    const std::size_t number = 2 + modules_.weights.size();  // dense_2, dense_3
    if (import_.architecture != "gemma-embedding" || number > 3) {
      return Unsupported(StrCat(Where(), ": ", number > 3 ? "a third dense layer" : "a dense layer",
                                " is not supported for ", import_.architecture));
    }
    KVCACHE_RETURN_IF_ERROR(
        CheckHfActivation(config, "activation_function", "torch.nn.modules.linear.Identity"));
    KVCACHE_ASSIGN_OR_RETURN(const bool has_bias, config.BoolOr("bias", true));
    if (has_bias) return config.Refuse("bias", "must be false");
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t inputs,
                             config.Int("in_features", 1, kMaxDenseSize));
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t outputs,
                             config.Int("out_features", 1, kMaxDenseSize));
    if (inputs != size_) {
      return config.Refuse("in_features", StrCat("must be ", size_, ", as many as come before it"));
    }
    KVCACHE_ASSIGN_OR_RETURN(HfWeights weights, HfWeights::Open(folder));
    modules_.weights.push_back(std::make_unique<HfWeights>(std::move(weights)));
    HfPlanner planner(*modules_.weights.back());
    planner.Matrix(StrCat("dense_", number, ".weight"), "linear.weight", inputs, outputs);
    KVCACHE_ASSIGN_OR_RETURN(std::vector<TensorPlan> plans, planner.Finish());
    for (TensorPlan& plan : plans) modules_.plans.push_back(std::move(plan));
    import_.Set(StrCat("dense_", number, "_feat_in"), inputs);
    import_.Set(StrCat("dense_", number, "_feat_out"), outputs);
    size_ = outputs;
    return Status::Ok();
  }

  const HfDirectory& directory_;
  HfImport& import_;
  const std::int64_t hidden_;
  std::int64_t size_;  // of the values behind the last module
  HfModules modules_;
};

}  // namespace

Result<HfModules> AddHfModules(const HfDirectory& directory, HfImport& import,
                               std::int64_t hidden) {
  // A reranker's pooling is that of its class.
  const bool is_reranker = import.hf_class.ends_with("ForSequenceClassification");
  if (is_reranker || !directory.Has(kModules)) return HfModules();
  return Modules(directory, import, hidden).Read();
}

}  // namespace kvcache
