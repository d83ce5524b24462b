// The weights with which one line of pixels becomes another: Pillow's, whose order of operations decides the bits.
//
// Thread safety: values, pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "image/resize/pillow_resize.h"

namespace kvcache::image {

// Weights are integers: 1 << kWeightBits is one. Sums of their products with bytes fit 32 bits, because the
// magnitudes of a pixel's weights add up to less than two.
inline constexpr int kWeightBits = 22;

struct FilterTaps {
  struct Window {
    int first = 0;  // the first pixel of the old line
    int count = 0;
  };
  std::vector<Window> windows;        // of each pixel of the new line
  std::vector<std::int32_t> weights;  // `row` for each window; those behind `count` are zeros
  int row = 0;

  std::span<const std::int32_t> Weights(std::size_t pixel) const {
    return std::span(weights).subspan(pixel * static_cast<std::size_t>(row),
                                      static_cast<std::size_t>(windows[pixel].count));
  }
};

// Returns the taps that make a line of `to` pixels of one of `from`. May throw std::bad_alloc.
FilterTaps MakeFilterTaps(int from, int to, ResizeFilter filter);

}  // namespace kvcache::image
