// The bytes of a cache: K and V of each layer, allocated when a layer is first written.
//
// Layers may differ in heads and head sizes. Types, layout and the number of cells are the same for
// all. Addresses belong to the backend; this class never dereferences them.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/cell_memory.h"
#include "kvcache/kv.h"
#include "kvcache/kv_backend.h"
#include "kvcache/status.h"

namespace kvcache {

class LayerStore {
 public:
  // Layers are numbered from 0. The limit exceeds any model and catches wrong layer numbers.
  static constexpr int kMaxLayers = 4096;

  // `prototype` has everything but shape and addresses. `backend` must outlive the store.
  // `memory`: that of the layers can be given back; null: it cannot.
  void Reset(KvBackend& backend, const LayerKv& prototype, CellMemory* memory = nullptr);

  // Returns the layer's storage, or nullptr for a layer that was never written.
  const LayerKv* Find(int layer) const;

  // Returns the storage of all layers; empty for those that were never written. May throw std::bad_alloc.
  std::vector<LayerKv> All() const;

  // Returns the layer's storage; allocates it if there is none. Errors, nothing changed:
  // kInvalidArgument for a number out of range or a shape that differs from the layer's;
  // kUnsupported for a shape that the types cannot hold; kOutOfMemory; the backend's.
  Result<LayerKv> Ensure(int layer, const KvShape& shape);

  // Returns the kInvalidArgument and kUnsupported errors of Ensure, or Ok. `whose` names the shape
  // in messages: "this Put".
  Status CheckLayer(int layer, const KvShape& shape, std::string_view whose) const;
  // Returns a line for each layer with memory: "layer 3: 8 heads of 64 (K) and 64 (V) values".
  std::string ShapesText() const;

  int size() const { return static_cast<int>(layers_.size()); }
  std::int64_t allocated_bytes() const { return allocated_bytes_; }
  // Returns the cells of the blocks whose memory can be given back in all layers; 0: none can.
  std::int64_t releasable_cells() const { return releasable_cells_; }
  // Gives the memory of a run of whole blocks back, in all layers. Errors: the backend's first; the
  // memory of other layers has gone back then.
  Status Release(const CellRun& run);

 private:
  struct Layer {
    LayerKv storage;
    std::unique_ptr<Buffer> k;
    std::unique_ptr<Buffer> v;
  };

  Status Allocate(int number, const KvShape& shape, Layer& layer);
  Status CheckShape(const KvShape& shape) const;

  Result<std::unique_ptr<Buffer>> Take(int layer, std::int64_t bytes);
  void NoteReleasable(const LayerKv& storage);

  KvBackend* backend_ = nullptr;
  CellMemory* memory_ = nullptr;
  std::int64_t allocated_bytes_ = 0;
  std::int64_t releasable_cells_ = 0;
  bool any_fixed_ = false;  // a layer cannot give its memory back
  LayerKv prototype_;
  std::vector<Layer> layers_;
};

}  // namespace kvcache
