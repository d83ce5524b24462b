// --gpu-layers, for all commands that run a model.
#pragma once

#include "app/flags/command_line.h"

namespace kvcache::app {

// Adds the flag. *layers is EngineOptions::kAutoGpuLayers for `auto`, which is the default.
void AddGpuLayers(FlagSet command, int* layers);

}  // namespace kvcache::app
