#include "convert/hf_windows.h"

#include <memory>
#include <span>
#include <string>

#include "base/errors.h"

namespace kvcache {
namespace {

std::vector<bool> Periodic(std::int64_t layers, std::int64_t period) {
  std::vector<bool> windowed;
  for (std::int64_t i = 0; i < layers; ++i) {
    windowed.push_back(period == 0 || (i + 1) % period != 0);
  }
  return windowed;
}

}  // namespace

Result<std::vector<std::string>> ReadHfLayerTypes(const HfConfig& config, std::int64_t layers) {
  KVCACHE_ASSIGN_OR_RETURN(std::vector<std::string> types, config.Strings("layer_types"));
  if (!config.Has("layer_types") || types.size() == static_cast<std::size_t>(layers)) return types;
  return config.Refuse("layer_types", StrCat("must have ", layers, " types, one for each layer"));
}

Status CheckHfLayerTypes(const HfConfig& config, std::int64_t layers, std::string_view type) {
  KVCACHE_ASSIGN_OR_RETURN(const auto types, ReadHfLayerTypes(config, layers));
  for (const std::string& each : types) {
    if (each != type) {
      return config.Refuse("layer_types", StrCat("must be ", type, " for each layer"));
    }
  }
  return Status::Ok();
}

Result<std::vector<bool>> ReadHfWindows(const HfConfig& config, std::int64_t layers,
                                        std::int64_t period) {
  KVCACHE_ASSIGN_OR_RETURN(const auto types, ReadHfLayerTypes(config, layers));
  if (types.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(period, config.IntOr("sliding_window_pattern", period, 0, 1 << 20));
    return Periodic(layers, period);
  }
  std::vector<bool> windowed;
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return config.Refuse("layer_types", "must be sliding_attention and full_attention");
    }
    windowed.push_back(type == "sliding_attention");
  }
  return windowed;
}

void SetHfWindowList(HfImport& import, const std::vector<bool>& windowed) {
  const auto list = std::make_unique<bool[]>(windowed.size());
  for (std::size_t i = 0; i < windowed.size(); ++i) list[i] = windowed[i];
  import.header.SetBools(import.architecture + ".attention.sliding_window_pattern",
                         std::span<const bool>(list.get(), windowed.size()));
}

void SetHfWindows(HfImport& import, const std::vector<bool>& windowed, std::int64_t period) {
  const auto layers = static_cast<std::int64_t>(windowed.size());
  if (windowed == Periodic(layers, period)) return;
  for (std::int64_t other = 0; other <= layers; ++other) {
    if (windowed != Periodic(layers, other)) continue;
    return import.Set("attention.sliding_window_pattern", other);
  }
  SetHfWindowList(import, windowed);
}

}  // namespace kvcache
