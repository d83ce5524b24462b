#include "convert/peft/peft_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr double kMaxPeftRank = 1 << 16;
constexpr HfRange kAlphaRange{1e-6, 1e9, "a number above 0 (from 1e-6 to 1e9)"};

// What other kinds of adapters say, by key. Empty values and false say nothing.
struct RefusedKey {
  const char* key;
  const char* why;
};
constexpr RefusedKey kRefused[] = {
    {"use_dora", "DoRA is not supported"},
    {"use_qalora", "QALoRA is not supported"},
    {"lora_bias", "biases of adapters are not supported"},
    {"modules_to_save", "whole modules in adapters are not supported"},
    {"fan_in_fan_out", "transposed weights are not supported"},
    {"layer_replication", "repeated layers are not supported"},
    {"alora_invocation_tokens", "adapters that begin at certain tokens (aLoRA) are not supported"},
    {"trainable_token_indices", "new rows of the embedding are not supported"},
    {"target_parameters", "parameters that are no modules are not supported"},
    {"arrow_config", "routed adapters are not supported"},
    {"ensure_weight_tying", "adapters of tied weights are not supported"},
    {"megatron_config", "parallel layers of Megatron are not supported"},
};

// What is read, and what says nothing about how an adapter is computed.
constexpr std::string_view kPeftKeys[] = {
    "peft_type",
    "r",
    "lora_alpha",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "bias",
    "init_lora_weights",
    "task_type",
    "auto_mapping",
    "revision",
    "base_model_name_or_path",
    "inference_mode",
    "peft_version",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "lora_dropout",
    "runtime_config",
    "megatron_core",
    "qalora_group_size",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
};

bool SaysNothing(const nlohmann::json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

// Whether a pattern is a plain name: of its signs only the dot means something else in a regular expression.
bool IsPlainName(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
}

Status CheckKind(const HfConfig& config) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string type, config.StringOr("peft_type", ""));
  if (type != "LORA") return config.Refuse("peft_type", "must be LORA");
  for (const auto& [key, why] : kRefused) {
    const nlohmann::json* const value = config.Find(key);
    if (value != nullptr && !SaysNothing(*value)) return config.Refuse(key, why);
  }
  for (const auto& [key, value] : config.object().items()) {
    if (SaysNothing(value) ||
        std::ranges::find(kPeftKeys, std::string_view(key)) != std::end(kPeftKeys)) {
      continue;
    }
    return config.Refuse(key, "the key is unknown, so it may change what the adapter computes");
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::string bias, config.StringOr("bias", "none"));
  if (bias != "none") return config.Refuse("bias", "must be none");
  const nlohmann::json* const init = config.Find("init_lora_weights");
  if (init == nullptr || !init->is_string()) return Status::Ok();
  const auto& name = init->get_ref<const std::string&>();
  for (const std::string_view changes : {"pissa", "olora", "corda", "loftq", "lora_ga"}) {
    if (name.starts_with(changes)) {
      return config.Refuse("init_lora_weights",
                           "training changed the base's weights, which the adapter needs");
    }
  }
  return Status::Ok();
}

}  // namespace

Result<PeftConfig> PeftConfig::Read(const HfConfig& config) {
  KVCACHE_RETURN_IF_ERROR(CheckKind(config));
  PeftConfig read;
  read.place_ = config.place();
  KVCACHE_ASSIGN_OR_RETURN(read.rank_,
                           config.IntOr("r", 8, 1, static_cast<std::int64_t>(kMaxPeftRank)));
  KVCACHE_ASSIGN_OR_RETURN(read.alpha_, config.FloatOr("lora_alpha", 8.0, kAlphaRange));
  KVCACHE_ASSIGN_OR_RETURN(read.by_root_, config.BoolOr("use_rslora", false));
  KVCACHE_ASSIGN_OR_RETURN(read.ranks_, ReadPattern(config, "rank_pattern"));
  KVCACHE_ASSIGN_OR_RETURN(read.alphas_, ReadPattern(config, "alpha_pattern"));
  for (const auto& [name, rank] : read.ranks_) {
    if (rank == std::floor(rank) && rank <= kMaxPeftRank) continue;
    return config.Refuse(
        "rank_pattern",
        StrCat("the rank of ", Quoted(name), " must be a whole number of at most ", kMaxPeftRank));
  }
  return read;
}

Result<PeftConfig::Pattern> PeftConfig::ReadPattern(const HfConfig& config, std::string_view key) {
  Pattern pattern;
  const nlohmann::json* const object = config.Find(key);
  if (object == nullptr) return pattern;
  if (!object->is_object()) {
    return Corrupt(StrCat(config.place(), ": ", key, " is no object of names and numbers"));
  }
  for (const auto& [name, value] : object->items()) {
    const std::string_view plain = std::string_view(name).substr(name.starts_with('^') ? 1 : 0);
    if (!IsPlainName(plain)) {
      return Unsupported(StrCat(config.place(), ": ", key, " has ", Quoted(name),
                                "; only names of modules are read, and no regular expressions"));
    }
    const bool fits = value.is_number() && value.get<double>() > 0.0 && value.get<double>() <= 1e9;
    if (!fits) {
      return Corrupt(StrCat(config.place(), ": ", key, " of ", Quoted(name), " is ",
                            Quoted(value.dump()), "; must be a number above 0, of at most 1e9"));
    }
    pattern.emplace_back(name, value.get<double>());
  }
  return pattern;
}

// A pattern means modules whose name is the pattern or ends with a dot and the pattern; with ^, the whole name.
bool PeftConfig::Means(std::string_view pattern, std::string_view module) {
  if (pattern.starts_with('^')) return module == pattern.substr(1);
  return module == pattern || (module.ends_with(pattern) && module.size() > pattern.size() &&
                               module[module.size() - pattern.size() - 1] == '.');
}

const double* PeftConfig::Find(const Pattern& pattern, std::string_view module) {
  const auto found =
      std::ranges::find_if(pattern, [&](const auto& one) { return Means(one.first, module); });
  return found == pattern.end() ? nullptr : &found->second;
}

// PEFT takes the first pattern in the file's order, which is not known here.
Status PeftConfig::CheckModule(std::string_view module) const {
  for (const auto& [key, pattern] :
       {std::pair{"rank_pattern", &ranks_}, {"alpha_pattern", &alphas_}}) {
    const std::pair<std::string, double>* first = nullptr;
    for (const auto& one : *pattern) {
      if (!Means(one.first, module)) continue;
      if (first == nullptr) first = &one;
      if (one.second == first->second) continue;
      return Unsupported(StrCat(place_, ": ", key, " has ", first->second, " by ",
                                Quoted(first->first), " and ", one.second, " by ",
                                Quoted(one.first), " for module ", Quoted(std::string(module)),
                                "; a module must have one value"));
    }
  }
  return Status::Ok();
}

std::int64_t PeftConfig::RankOf(std::string_view module) const {
  const double* const own = Find(ranks_, module);
  return own != nullptr ? static_cast<std::int64_t>(*own) : rank_;
}

double PeftConfig::ScaleOf(std::string_view module) const {
  const double* const own = Find(alphas_, module);
  const auto rank = static_cast<double>(RankOf(module));
  return (own != nullptr ? *own : alpha_) / (by_root_ ? std::sqrt(rank) : rank);
}

}  // namespace kvcache
