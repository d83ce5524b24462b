// The bytes of one kind of recurrent state (convolution or recurrent). Each layer has cells of
// `values` f32, allocated a page at a time when a page is first written.
//
//   layer 3   page 0 [ zeros ]   page 1 [ cell 1 | cell 2 ]   page 2 [ cell 3 | cell 4 ]   …
//
// Cell 0 is never written and holds the zeros of a new sequence. A cell is contiguous, so segments
// need its address only. Views of several cells are for kernels that need one tensor: consecutive
// cells of a page are one view. Other cells are gathered into a buffer for reading, and scattered
// from one after writing. Addresses belong to the backend; this class never dereferences them.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/kv_backend.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache {

class StateStore {
 public:
  static constexpr std::int32_t kZeros = 0;

  // Makes a store of layers with `cells` cells each, plus the zeros. `layers` has their numbers in the model; the
  // other calls count them from 0. With `values` = 0 it stores nothing. `backend` must outlive the store. May throw
  // std::bad_alloc.
  void Reset(KvBackend& backend, std::int64_t values, std::span<const int> layers,
             std::int32_t cells, std::int32_t page_cells);

  std::int64_t values() const { return values_; }

  // Allocates the pages of these cells. Errors: kOutOfMemory, and the backend's.
  Status Ensure(int layer, std::span<const std::int32_t> cells);
  // Returns the address of a cell. REQUIRES: Ensure succeeded for it.
  std::byte* At(int layer, std::int32_t cell) const { return View(layer, cell, 1).data; }
  // Returns memory for `count` states that no layer keeps, [values, count]. Valid until the next
  // call of Scratch, Target or Reserve. Errors: kOutOfMemory, and the backend's.
  Result<TensorView> Scratch(std::size_t count) { return Scratch(scratch_, count); }

  // Returns the cells' contents, [values, cells.size()]: a view, or a copy if the cells are not
  // consecutive. Errors: kOutOfMemory, and the backend's.
  Result<TensorView> Read(int layer, std::span<const std::int32_t> cells);
  // Returns memory for the cells' new contents: the cells, or a buffer if they are not consecutive.
  Result<TensorView> Target(int layer, std::span<const std::int32_t> cells);
  // Allocates the layer's memory for `count` sequences. Returns a buffer of the shape of Target's.
  Result<TensorView> Reserve(int layer, std::int32_t count);
  // Writes `state`, [values, cells.size()], any float type, to the cells. Copies nothing if `state`
  // is the view that Target returned and the cells are consecutive.
  Status Write(int layer, std::span<const std::int32_t> cells, const TensorView& state);

  // Frees the pages of which no cell is in use, and the buffers.
  void Release(const std::function<bool(std::int32_t cell)>& in_use);
  // Returns the bytes of one state of all layers.
  std::int64_t state_bytes() const {
    return pages_ == 0 ? 0
                       : BytesOf(DType::kF32, values_) *
                             (static_cast<std::int64_t>(buffers_.size()) / pages_);
  }
  std::int64_t allocated_bytes() const { return allocated_bytes_; }

 private:
  std::int32_t PageOf(std::int32_t cell) const {
    return cell == kZeros ? 0 : 1 + (cell - 1) / page_cells_;
  }
  std::int32_t IndexInPage(std::int32_t cell) const {
    return cell == kZeros ? 0 : (cell - 1) % page_cells_;
  }
  bool Adjacent(std::span<const std::int32_t> cells) const;
  TensorView View(int layer, std::int32_t first, std::size_t cells) const;
  Result<TensorView> Scratch(std::unique_ptr<Buffer>& buffer, std::size_t cells);
  static constexpr int kNoLayer = -1;
  Result<std::unique_ptr<Buffer>> Allocate(std::int64_t cells, int layer);

  KvBackend* backend_ = nullptr;
  std::int64_t values_ = 0;
  std::int32_t page_cells_ = 1;
  std::int32_t pages_ = 0;
  std::vector<int> layers_;
  std::vector<std::unique_ptr<Buffer>> buffers_;  // [layers][pages]; null: never written
  std::unique_ptr<Buffer> gathered_;
  std::unique_ptr<Buffer> scratch_;
  std::int64_t allocated_bytes_ = 0;
};

}  // namespace kvcache
