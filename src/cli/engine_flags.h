// The flags of every command that runs a model: which one, and how its cache is kept.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "engine/engine.h"

namespace kvcache::cli {

struct CacheTypes {
  DType k = DType::kF16;
  DType v = DType::kF16;
};

// --kv-type, --k-type, --v-type.
class CacheTypeFlags {
 public:
  void Add(CLI::App& command);

  CacheTypes types() const { return {k_.value_or(kv_), v_.value_or(kv_)}; }

 private:
  DType kv_ = DType::kF16;
  std::optional<DType> k_, v_;
};

class EngineFlags {
 public:
  // Declares MODEL and the cache options; `default_context` says what --ctx is without it.
  void Add(CLI::App& command, const std::string& default_context = "the model's, at most 8,192");

  const std::string& model() const { return model_; }

  // Opens what they say. Errors name the flag or the file.
  Result<std::unique_ptr<Engine>> Open() const { return OpenFor(0); }

  // The same with a context of `tokens` where --ctx does not say otherwise.
  Result<std::unique_ptr<Engine>> OpenFor(int tokens) const;

 private:
  std::string model_;
  CacheTypeFlags types_;
  int context_ = 0;
  int prefill_chunk_ = 512;
  int threads_ = 0;
  CheckpointOptions checkpoints_;
};

}  // namespace kvcache::cli
