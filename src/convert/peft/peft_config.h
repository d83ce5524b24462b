// adapter_config.json: the ranks and factors of a LoRA adapter's modules.
//
// Thread safety: const calls from any number of threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/hf_config.h"
#include "kvcache/status.h"

namespace kvcache {

class PeftConfig {
 public:
  // Errors name the key: kCorrupt; kUnsupported for what is not done.
  static Result<PeftConfig> Read(const HfConfig& config);

  // Checks that the patterns give a module one rank and one alpha. Errors: kUnsupported.
  Status CheckModule(std::string_view module) const;

  // Of a module, by its name in the model: "model.layers.0.self_attn.q_proj".
  std::int64_t RankOf(std::string_view module) const;
  double ScaleOf(std::string_view module) const;  // alpha / r, or alpha / √r

 private:
  // Numbers of modules whose names end with a pattern.
  using Pattern = std::vector<std::pair<std::string, double>>;

  static Result<Pattern> ReadPattern(const HfConfig& config, std::string_view key);
  static bool Means(std::string_view pattern, std::string_view module);
  static const double* Find(const Pattern& pattern, std::string_view module);

  std::string place_;  // of the file, for messages
  std::int64_t rank_ = 0;
  double alpha_ = 0.0;
  bool by_root_ = false;  // use_rslora
  Pattern ranks_, alphas_;
};

}  // namespace kvcache
