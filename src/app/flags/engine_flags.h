// The flags that all commands share which run a model: the model, its cache, and the threads.
//
// Thread safety: values.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/flags/command_line.h"
#include "engine/memory_plan.h"
#include "kvcache_engine/engine.h"

namespace kvcache::app {

struct CacheTypes {
  DType k = DType::kF16;
  DType v = DType::kF16;
};

// --kv-type, --k-type, --v-type.
class CacheTypeFlags {
 public:
  // Declares the flags. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command);

  CacheTypes types() const { return {k_.value_or(kv_), v_.value_or(kv_)}; }

 private:
  DType kv_ = DType::kF16;
  std::optional<DType> k_, v_;
};

class EngineFlags {
 public:
  // Declares MODEL, the flags of the cache and --verbose. `default_context` is the help's text for the default
  // of --ctx. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command, const std::string& default_context = "the model's, at most 8,192");
  // The same without MODEL and --verbose: a server has a log.
  void AddWithoutModel(FlagSet command,
                       const std::string& default_context = "the model's, at most 8,192");

  const std::string& model() const { return model_; }

  // Returns the tokens of --ctx; 0: it is not given.
  int context() const { return context_; }
  // Returns the threads of --threads; 0: one per core.
  int threads() const { return threads_; }
  // Returns whether --numa is auto.
  bool uses_numa() const { return uses_numa_; }
  // Returns the layers of --gpu-layers, as EngineOptions has them.
  int gpu_layers() const { return gpu_layers_; }
  // Sets the context for a command line without --ctx.
  void SetDefaultContext(int tokens) { context_ = tokens; }

  // Sets EngineOptions::draft_head for the next Open.
  void SetDraftHead(std::string path) { draft_head_ = std::move(path); }

  // Sets EngineOptions::adapters for the next Open.
  void SetAdapters(std::vector<EngineAdapter> adapters) { adapters_ = std::move(adapters); }

  // Opens the model. Errors name the flag or the file.
  Result<std::unique_ptr<Engine>> Open() const { return OpenFor(0); }

  // Opens the model with a context of `tokens`, unless --ctx is given, for so many sequences.
  Result<std::unique_ptr<Engine>> OpenFor(int tokens, int sequences = 1) const;

  // Opens the weights at a path for a scheduler of so many requests, with a pool of the plan that gives its memory
  // back. `context`: tokens without --ctx; 0: the default. `draft_head`: as EngineOptions::draft_head.
  struct ForRequests {
    std::string path;
    int sequences = 1;
    MemoryPlan plan{};
    int context = 0;
    std::string draft_head{};
    std::vector<EngineAdapter> adapters{};
  };
  Result<std::unique_ptr<Engine>> OpenForRequests(const ForRequests& wanted) const;

 private:
  EngineOptions Options() const;
  static Result<std::unique_ptr<Engine>> OpenWith(const std::string& path,
                                                  const EngineOptions& options);

  std::string model_;
  std::string draft_head_;
  std::vector<EngineAdapter> adapters_;
  CacheTypeFlags types_;
  int context_ = 0;
  int prefill_chunk_ = 512;
  int threads_ = 0;
  bool uses_numa_ = true;
  int gpu_layers_ = EngineOptions::kAutoGpuLayers;
  CheckpointOptions checkpoints_;
};

}  // namespace kvcache::app
