// What the host of models needs of a loaded model, whatever the model is for.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kvcache_engine/adapter.h"
#include "server/models/adapter_scales.h"
#include "server/models/service_counters.h"

namespace kvcache::server {

class ModelService {
 public:
  // Ends all requests without calling their functions.
  virtual ~ModelService() = default;

  virtual const std::string& architecture() const = 0;
  // Returns the tokens of the longest input, with its answer.
  virtual std::int64_t context() const = 0;

  // Returns the adapters that the model was opened with.
  virtual std::span<const AdapterInfo> adapters() const = 0;
  // Returns their scales for requests that choose none. Never null behind the service's Make.
  const std::shared_ptr<AdapterScales>& scales() const { return scales_; }
  // Takes the scales of another service of the model. Call it before the first request.
  void ShareScales(std::shared_ptr<AdapterScales> scales) { scales_ = std::move(scales); }

  // Refuses further requests with kCancelled.
  virtual void StopAccepting() = 0;
  // Ends all requests with kCancelled.
  virtual void EndAll() = 0;
  // Changes the bytes that the service's cache may take, and gives back what is above; then calls `done`, on any thread. If
  // the service ends before, `done` is dropped.
  virtual void SetBudget(std::int64_t bytes, std::function<void()> done) = 0;
  virtual ServiceCounters counters() const = 0;
  // Returns whether all requests have ended and their functions have returned.
  virtual bool idle() const = 0;

 private:
  std::shared_ptr<AdapterScales> scales_;
};

}  // namespace kvcache::server
