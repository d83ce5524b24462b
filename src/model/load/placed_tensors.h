// Values of the host in a backend's memory, for as long as a model lives: norms, biases, tables. A backend that works
// in the host's memory reads them where they are.
//
// Thread safety: one thread at a time. Errors: kOutOfMemory and those of CopyFromHost.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/kv_backend.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache {

class PlacedTensors {
 public:
  // Returns `host`, a dense view of host memory, as a view of the backend's memory: itself, or a copy that lives as
  // long as this object. Only the layer of the model that was entered last may use it; `layer` is its number.
  Result<TensorView> Place(KvBackend& backend, int layer, const TensorView& host);

  // Takes all that `other` has.
  void Add(PlacedTensors other);

  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::size_t bytes_ = 0;
};

// A vector that a family makes itself, such as the ones of a norm without weights.
class PlacedVector {
 public:
  PlacedVector() = default;
  // A vector of one value, for the layer that was entered last.
  static Result<PlacedVector> Make(KvBackend& backend, int layer, std::int64_t size, float value);

  bool empty() const { return values_.empty(); }
  // [size], f32. Moving the object keeps it valid.
  const TensorView& view() const { return view_; }

 private:
  std::vector<float> values_;
  PlacedTensors placed_;
  TensorView view_;
};

}  // namespace kvcache
