// The scales of a model's adapters, for requests that choose none. Clients may change them.
//
// Thread safety: any thread.
#pragma once

#include <mutex>
#include <vector>

#include "kvcache_engine/engine.h"

namespace kvcache::server {

class AdapterScales {
 public:
  // Begins with the scales of the engine's adapters.
  explicit AdapterScales(const Engine& engine);

  std::vector<float> Get() const;
  // REQUIRES: as many as the engine has adapters.
  void Set(std::vector<float> scales);

 private:
  mutable std::mutex mutex_;
  std::vector<float> scales_;  // guarded by mutex_
};

}  // namespace kvcache::server
