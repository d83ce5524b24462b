// A strided view of memory.
//
// Dimensions are written fastest-varying first: a matrix of N rows of K contiguous values has dims
// {K, N}. A view owns nothing and is valid as long as the buffer under it. `data` is an address in
// the backend's memory; only that backend may dereference it.
//
// Thread safety: values; as thread-safe as an int.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvcache/types.h"

namespace kvcache {

struct TensorView {
  static constexpr int kMaxRank = 4;

  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::array<std::int64_t, kMaxRank> dims{1, 1, 1, 1};
  // Bytes from one element to the next along each dimension. For block types stride_bytes[0] is
  // the size of a block, and dims[0] still counts values.
  std::array<std::int64_t, kMaxRank> stride_bytes{0, 0, 0, 0};

  std::int64_t elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }

  // Returns a view whose dimensions follow each other without a gap. A view does not record
  // constness: pass a view of const data only to parameters that are read, such as Put's K and V.
  static TensorView Dense(const void* data, DType dtype, std::int64_t d0, std::int64_t d1 = 1,
                          std::int64_t d2 = 1, std::int64_t d3 = 1) {
    TensorView view;
    view.data = static_cast<std::byte*>(const_cast<void*>(data));
    view.dtype = dtype;
    view.dims = {d0, d1, d2, d3};
    view.stride_bytes[0] = InfoOf(dtype).block_bytes;
    view.stride_bytes[1] = BytesOf(dtype, d0);
    view.stride_bytes[2] = view.stride_bytes[1] * d1;
    view.stride_bytes[3] = view.stride_bytes[2] * d2;
    return view;
  }

  // REQUIRES: T is the C++ type of `dtype`; the memory is the host's.
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

}  // namespace kvcache
