// Which layers have a window, from config.json: layer_types, or sliding_window_pattern.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "convert/hf_import.h"
#include "kvcache/status.h"

namespace kvcache {

// Returns layer_types; empty if the key is missing. Errors: kCorrupt and kUnsupported: it has no type
// for each layer.
Result<std::vector<std::string>> ReadHfLayerTypes(const HfConfig& config, std::int64_t layers);

// Refuses layer_types that has another type than `type`.
Status CheckHfLayerTypes(const HfConfig& config, std::int64_t layers, std::string_view type);

// Returns a value for each layer. Without keys every `period`-th layer has no window; 0: all have
// one. Errors: kCorrupt and kUnsupported, with the key.
Result<std::vector<bool>> ReadHfWindows(const HfConfig& config, std::int64_t layers,
                                        std::int64_t period);

// Sets attention.sliding_window_pattern to a number or to a list, unless it is the architecture's
// own `period`.
void SetHfWindows(HfImport& import, const std::vector<bool>& windowed, std::int64_t period);

// Sets the list.
void SetHfWindowList(HfImport& import, const std::vector<bool>& windowed);

}  // namespace kvcache
