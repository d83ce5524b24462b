// The bytes of recurrent states of one sort (convolution or recurrent): per layer, cells of
// `values` f32 each, allocated a page at a time when a page is first written.
//
//   layer 3   page 0 [ zeros ]   page 1 [ cell 1 | cell 2 ]   page 2 [ cell 3 | cell 4 ]   …
//
// Cell 0 is never written: it is what a new sequence's state is. Cells that follow each other in
// a page are one view; any others are gathered into a scratch buffer, and scattered from one.
//
// Thread safety: none. Addresses belong to the backend and are never followed here.
#pragma once

#include <cstdint>
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

  // `layers` layers, numbered from 0, of `cells` cells beside the zeros. `values` 0: nothing is
  // kept. `backend` must outlive the store. May throw std::bad_alloc.
  void Reset(KvBackend& backend, std::int64_t values, int layers, std::int32_t cells,
             std::int32_t page_cells);

  std::int64_t values() const { return values_; }

  // What the cells hold, [values, cells.size()]. Errors: kOutOfMemory, and the backend's.
  Result<TensorView> Read(int layer, std::span<const std::int32_t> cells);
  // Where their contents can be written; a buffer that Write copies from if they lie apart.
  Result<TensorView> Target(int layer, std::span<const std::int32_t> cells);
  // A buffer for that alone, and the layer's memory for `count` sequences, allocated now.
  Result<TensorView> Reserve(int layer, std::int32_t count);
  // Their contents from `state`, [values, cells.size()], any float type; no copy if it is Target.
  Status Write(int layer, std::span<const std::int32_t> cells, const TensorView& state);

  std::int64_t allocated_bytes() const { return allocated_bytes_; }

 private:
  std::int32_t PageOf(std::int32_t cell) const {
    return cell == kZeros ? 0 : 1 + (cell - 1) / page_cells_;
  }
  std::int32_t PlaceIn(std::int32_t cell) const {
    return cell == kZeros ? 0 : (cell - 1) % page_cells_;
  }
  bool Adjacent(std::span<const std::int32_t> cells) const;
  Status Ensure(int layer, std::span<const std::int32_t> cells);
  TensorView View(int layer, std::int32_t first, std::size_t cells) const;
  Result<TensorView> Scratch(std::unique_ptr<Buffer>& buffer, std::size_t cells);
  Result<std::unique_ptr<Buffer>> Allocate(std::int64_t cells);

  KvBackend* backend_ = nullptr;
  std::int64_t values_ = 0;
  std::int32_t page_cells_ = 1;
  std::int32_t pages_ = 0;
  std::vector<std::unique_ptr<Buffer>> buffers_;  // [layers][pages]; null: never written
  std::unique_ptr<Buffer> gathered_;
  std::unique_ptr<Buffer> scattered_;
  std::int64_t allocated_bytes_ = 0;
};

}  // namespace kvcache
