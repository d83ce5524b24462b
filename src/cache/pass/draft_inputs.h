// The inputs of the drafts of a pass, from which AcceptDrafts computes states again: f32 values for
// each draft in each recurrent layer.
//
// A layer's buffer grows to the largest pass of drafts so far. Addresses belong to the backend; this
// class never dereferences them.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kvcache/kv_backend.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache {

class DraftInputStore {
 public:
  // `backend` must outlive the store. May throw std::bad_alloc.
  void Reset(KvBackend& backend, std::int64_t values, int layers);

  // Makes room for `drafts` drafts in the layer. If the buffer must grow, it loses its contents.
  // Errors: kOutOfMemory, and the backend's.
  Status Ensure(int layer, std::int64_t drafts);
  // Returns the inputs [values, drafts], f32, dense. REQUIRES: Ensure succeeded for the layer with
  // as many drafts.
  TensorView View(int layer, std::int64_t drafts) const;

  // Frees the buffers.
  void Release();

  // Returns the bytes that Ensure(layer, drafts) for each layer would add.
  std::int64_t GrowthOf(std::int64_t drafts) const;
  std::int64_t allocated_bytes() const { return allocated_bytes_; }

 private:
  KvBackend* backend_ = nullptr;
  std::int64_t values_ = 0;
  std::vector<std::unique_ptr<Buffer>> buffers_;  // [layers]; null: never written
  std::int64_t allocated_bytes_ = 0;
};

}  // namespace kvcache
