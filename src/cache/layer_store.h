// The bytes of a cache: K and V of each layer, allocated when a layer is first written.
//
// Layers may differ in heads and head sizes; types, layout and cells are the same for all.
// Thread safety: none. Addresses belong to the backend and are never followed here.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kvcache/kv.h"
#include "kvcache/kv_backend.h"
#include "kvcache/status.h"

namespace kvcache {

class LayerStore {
 public:
  // Layers are numbered from 0; more than any model has is taken for a mistake.
  static constexpr int kMaxLayers = 4096;

  // `prototype` says all but shape and addresses. `backend` must outlive the store.
  void Reset(KvBackend& backend, const LayerKv& prototype);

  // The layer's storage, or nullptr for a layer that was never written.
  const LayerKv* Find(int layer) const;

  // The layer's storage, made now if need be. Errors, nothing changed: kInvalidArgument for a
  // number out of range or a shape other than the layer's; kUnsupported for a shape that the
  // types cannot hold; kOutOfMemory and whatever else the backend says.
  Result<LayerKv> Ensure(int layer, const KvShape& shape);

  int size() const { return static_cast<int>(layers_.size()); }
  std::int64_t allocated_bytes() const;

 private:
  struct Layer {
    LayerKv storage;
    std::unique_ptr<Buffer> k;
    std::unique_ptr<Buffer> v;
  };

  Status Allocate(const KvShape& shape, Layer& layer);
  Status CheckShape(const KvShape& shape) const;

  KvBackend* backend_ = nullptr;
  LayerKv prototype_;
  std::vector<Layer> layers_;
};

}  // namespace kvcache
