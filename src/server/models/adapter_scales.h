// The scales of a model's adapters, for requests that choose none. Clients may change them.
//
// Thread safety: any thread.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "kvcache_engine/adapter.h"

namespace kvcache::server {

class AdapterScales {
 public:
  // Begins with the scales that the adapters were opened with.
  explicit AdapterScales(std::span<const AdapterInfo> adapters);

  std::vector<float> Get() const;
  // REQUIRES: as many as there are adapters.
  void Set(std::vector<float> scales);

 private:
  mutable std::mutex mutex_;
  std::vector<float> scales_;  // guarded by mutex_
};

}  // namespace kvcache::server
