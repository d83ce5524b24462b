#include "server/models/adapter_scales.h"

#include <utility>

namespace kvcache::server {

AdapterScales::AdapterScales(std::span<const AdapterInfo> adapters) {
  for (const AdapterInfo& adapter : adapters) scales_.push_back(adapter.scale);
}

std::vector<float> AdapterScales::Get() const {
  const std::lock_guard lock(mutex_);
  return scales_;
}

void AdapterScales::Set(std::vector<float> scales) {
  const std::lock_guard lock(mutex_);
  scales_ = std::move(scales);
}

}  // namespace kvcache::server
