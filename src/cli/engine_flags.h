// The flags of every command that runs a model: which one, and how its cache is kept.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "engine/engine.h"

namespace kvcache::cli {

class EngineFlags {
 public:
  // Declares MODEL and the cache options.
  void Add(CLI::App& command);

  const std::string& model() const { return model_; }

  // Opens what they say. Errors name the flag or the file.
  Result<std::unique_ptr<Engine>> Open() const;

  // The same with a context of at least `tokens` where --ctx does not say otherwise.
  Result<std::unique_ptr<Engine>> OpenFor(int tokens) const;

 private:
  Result<EngineOptions> Options() const;

  std::string model_;
  std::string kv_type_ = "f16";
  std::string k_type_;
  std::string v_type_;
  int context_ = 0;
  int prefill_chunk_ = 512;
  int threads_ = 0;
};

}  // namespace kvcache::cli
