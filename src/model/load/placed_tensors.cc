#include "model/load/placed_tensors.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/errors.h"

namespace kvcache {

Result<TensorView> PlacedTensors::Place(KvBackend& backend, int layer, const TensorView& host) {
  if (backend.works_in_host_memory()) return host;
  const auto bytes = static_cast<std::size_t>(BytesOf(host.dtype, host.elements()));
  TensorView placed = host;
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, backend.AllocateForLayer(layer, bytes));
  placed.data = buffer->data();
  KVCACHE_RETURN_IF_ERROR(backend.CopyFromHost({host.data, bytes}, placed));
  KVCACHE_RETURN_IF_ERROR(
      Guarded("no memory for a tensor", [&] { buffers_.push_back(std::move(buffer)); }));
  bytes_ += bytes;
  return placed;
}

void PlacedTensors::Add(PlacedTensors other) {
  std::ranges::move(other.buffers_, std::back_inserter(buffers_));
  bytes_ += other.bytes_;
}

Result<PlacedVector> PlacedVector::Make(KvBackend& backend, int layer, std::int64_t size,
                                        float value) {
  PlacedVector vector;
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a vector", [&] {
    vector.values_.assign(static_cast<std::size_t>(size), value);
  }));
  KVCACHE_ASSIGN_OR_RETURN(
      vector.view_,
      vector.placed_.Place(backend, layer,
                           TensorView::Dense(vector.values_.data(), DType::kF32, size)));
  return vector;
}

}  // namespace kvcache
