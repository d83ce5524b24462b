// A strided view of memory that a backend owns.
//
// Dimensions are written fastest-varying first: a matrix of N rows of K contiguous values is
// dims {K, N}. A view owns nothing; it is valid as long as the buffer under it.
// `data` is an address in the backend's memory: only that backend may follow it.
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
  // Bytes from one element to the next along each dimension. For block types stride[0] is
  // the bytes of a block, and dims[0] still counts values.
  std::array<std::int64_t, kMaxRank> stride_bytes{0, 0, 0, 0};

  std::int64_t elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }

  // A dense view: each dimension follows the one before without a gap.
  static TensorView Dense(void* data, DType dtype, std::int64_t d0, std::int64_t d1 = 1,
                          std::int64_t d2 = 1, std::int64_t d3 = 1) {
    TensorView view;
    view.data = static_cast<std::byte*>(data);
    view.dtype = dtype;
    view.dims = {d0, d1, d2, d3};
    view.stride_bytes[0] = InfoOf(dtype).block_bytes;
    view.stride_bytes[1] = BytesOf(dtype, d0);
    view.stride_bytes[2] = view.stride_bytes[1] * d1;
    view.stride_bytes[3] = view.stride_bytes[2] * d2;
    return view;
  }

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

}  // namespace kvcache
