#include "model/load/placed_tensors.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/errors.h"

namespace kvcache {

Result<TensorView> PlacedTensors::Place(KvBackend& backend, const TensorView& host) {
  if (backend.works_in_host_memory()) return host;
  const auto bytes = static_cast<std::size_t>(BytesOf(host.dtype, host.elements()));
  TensorView placed = host;
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, backend.Allocate(bytes));
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

Result<PlacedVector> PlacedVector::Make(KvBackend& backend, std::vector<float> values) {
  PlacedVector vector;
  vector.values_ = std::move(values);
  KVCACHE_ASSIGN_OR_RETURN(
      vector.view_,
      vector.placed_.Place(backend, TensorView::Dense(vector.values_.data(), DType::kF32,
                                                      std::ssize(vector.values_))));
  return vector;
}

Result<PlacedVector> PlacedVector::Make(KvBackend& backend, std::int64_t size, float value) {
  return Make(backend, std::vector<float>(static_cast<std::size_t>(size), value));
}

}  // namespace kvcache
