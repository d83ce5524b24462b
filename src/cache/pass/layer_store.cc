#include "cache/pass/layer_store.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

std::string Describe(const KvShape& shape) {
  return StrCat(shape.kv_heads, " heads of ", shape.k_dim, " (K) and ", shape.v_dim, " (V) values",
                shape.v_in_k ? ", V in K" : "");
}

// Returns the number of values of all cells, or -1 if their bytes do not fit an int64.
std::int64_t Values(std::int64_t cells, int heads, int dim) {
  constexpr std::int64_t kMaxValueBytes = 8;
  std::int64_t values = static_cast<std::int64_t>(heads) * dim;
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(values, cells, &values)) return -1;
  return __builtin_mul_overflow(values, kMaxValueBytes, &bytes) ? -1 : values;
}

}  // namespace

void LayerStore::Reset(KvBackend& backend, const LayerKv& prototype, CellMemory* memory) {
  backend_ = &backend;
  memory_ = memory;
  prototype_ = prototype;
}

const LayerKv* LayerStore::Find(int layer) const {
  if (layer < 0 || layer >= size() || layers_[layer].k == nullptr) return nullptr;
  return &layers_[layer].storage;
}

std::vector<LayerKv> LayerStore::All() const {
  std::vector<LayerKv> all;
  all.reserve(layers_.size());
  for (const Layer& layer : layers_) all.push_back(layer.k == nullptr ? LayerKv{} : layer.storage);
  return all;
}

Status LayerStore::CheckLayer(int layer, const KvShape& shape, std::string_view whose) const {
  if (const LayerKv* storage = Find(layer); storage != nullptr) {
    if (storage->shape == shape) return Status::Ok();
    return InvalidArgument(StrCat("layer ", layer, " has ", Describe(storage->shape), "; ", whose,
                                  " has ", Describe(shape)));
  }
  if (layer < 0 || layer >= kMaxLayers) {
    return InvalidArgument(StrCat("layer ", layer, " is not in [0, ", kMaxLayers, ")"));
  }
  return CheckShape(shape).WithContext(StrCat("layer ", layer));
}

Result<LayerKv> LayerStore::Ensure(int layer, const KvShape& shape) {
  KVCACHE_RETURN_IF_ERROR(CheckLayer(layer, shape, "this Put"));
  if (const LayerKv* storage = Find(layer); storage != nullptr) return *storage;
  Layer made;
  KVCACHE_RETURN_IF_ERROR(Allocate(layer, shape, made).WithContext(StrCat("layer ", layer)));
  if (layer >= size()) {
    KVCACHE_RETURN_IF_ERROR(
        Guarded("no memory for the list of layers", [&] { layers_.resize(layer + 1); }));
  }
  layers_[layer] = std::move(made);
  allocated_bytes_ += layers_[layer].storage.KBytes() + layers_[layer].storage.VBytes();
  NoteReleasable(layers_[layer].storage);
  return layers_[layer].storage;
}

Status LayerStore::CheckShape(const KvShape& shape) const {
  if (shape.kv_heads < 1 || shape.k_dim < 1 || shape.v_dim < 1) {
    return InvalidArgument(Describe(shape) + "; each number must be at least 1");
  }
  const DType k_type = prototype_.k_type;
  const DType v_type = shape.v_in_k ? k_type : prototype_.v_type;
  if (shape.v_in_k && InfoOf(k_type).block_size > 1 && k_type != DType::kQ8_0) {
    return Unsupported(StrCat(Describe(shape), "; k_type ", InfoOf(k_type).name,
                              " cannot hold V in K; of the block types, q8_0 can"));
  }
  if (shape.k_dim % InfoOf(k_type).block_size != 0 ||
      shape.v_dim % InfoOf(v_type).block_size != 0) {
    return Unsupported(StrCat(Describe(shape), "; must be whole blocks of ", InfoOf(k_type).name,
                              " (K) and ", InfoOf(v_type).name, " (V)"));
  }
  if (Values(prototype_.cells, shape.kv_heads, shape.k_dim) < 0 ||
      Values(prototype_.cells, shape.kv_heads, shape.v_dim) < 0) {
    return OutOfMemory(StrCat(Describe(shape), " in ", prototype_.cells,
                              " cells are more bytes than an int64 can count"));
  }
  return Status::Ok();
}

Result<std::unique_ptr<Buffer>> LayerStore::Take(int layer, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  return memory_ == nullptr ? backend_->AllocateForLayer(layer, size)
                            : memory_->AllocateCells(size);
}

Status LayerStore::Allocate(int number, const KvShape& shape, Layer& layer) {
  layer.storage = prototype_;
  layer.storage.shape = shape;
  KVCACHE_ASSIGN_OR_RETURN(layer.k, Take(number, layer.storage.KBytes()));
  layer.storage.k = layer.k->data();
  if (shape.v_in_k) {
    layer.storage.v_type = layer.storage.k_type;
    layer.storage.v_transposed = false;
    return Status::Ok();
  }
  KVCACHE_ASSIGN_OR_RETURN(layer.v, Take(number, layer.storage.VBytes()));
  layer.storage.v = layer.v->data();
  return Status::Ok();
}

std::string LayerStore::ShapesText() const {
  std::string text;
  for (int layer = 0; layer < size(); ++layer) {
    const LayerKv* const storage = Find(layer);
    if (storage != nullptr) text += StrCat("layer ", layer, ": ", Describe(storage->shape), "\n");
  }
  return text;
}

// Blocks are powers of two, so the largest one consists of whole blocks of each layer.
void LayerStore::NoteReleasable(const LayerKv& storage) {
  const std::int64_t cells = memory_ == nullptr ? 0 : memory_->ReleasableCells(storage);
  any_fixed_ = any_fixed_ || cells == 0;
  releasable_cells_ = any_fixed_ ? 0 : std::max(releasable_cells_, cells);
}

Status LayerStore::Release(const CellRun& run) {
  Status status;
  for (const Layer& layer : layers_) {
    if (layer.k == nullptr) continue;
    Status released = memory_->ReleaseCells(layer.storage, run);
    if (status.ok()) status = std::move(released);
  }
  return status;
}

}  // namespace kvcache
