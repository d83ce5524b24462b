// What the host of models needs of a loaded model, whatever the model is for.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "server/models/service_counters.h"

namespace kvcache::server {

class ModelService {
 public:
  // Ends all requests without calling their functions.
  virtual ~ModelService() = default;

  virtual const std::string& architecture() const = 0;
  // Returns the tokens of the longest input, with its answer.
  virtual std::int64_t context() const = 0;

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
};

}  // namespace kvcache::server
