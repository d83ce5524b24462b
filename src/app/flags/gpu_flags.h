// --gpu-layers, --numa and --verbose, for all commands that run a model.
#pragma once

#include "app/flags/command_line.h"
#include "kvcache_engine/engine.h"

namespace kvcache::app {

// Adds the flag. *layers is EngineOptions::kAutoGpuLayers for `auto`, which is the default.
Flag AddGpuLayers(FlagSet command, int* layers);

// Adds --numa. *uses is true for `auto`, which is the default.
Flag AddNuma(FlagSet command, bool* uses);

// Adds --verbose: one line on where each model is computed, on standard error.
Flag AddVerbose(FlagSet command);

// A draft model has what the model left, or nothing if that has nothing.
inline int GpuLayersOfDraft(const Engine& engine) {
  return engine.options().gpu_layers == 0 ? 0 : EngineOptions::kAutoGpuLayers;
}

}  // namespace kvcache::app
