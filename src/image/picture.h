// A decoded picture, and the limits within which pictures are decoded.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::image {

// Rows from top to bottom, pixels from left to right, three bytes a pixel: red, green, blue. What a decoder
// returns has at least one pixel.
struct Picture {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> rgb;  // width * height * 3

  std::size_t row_bytes() const { return static_cast<std::size_t>(width) * 3; }
  std::span<const std::uint8_t> Row(int y) const {
    return std::span(rgb).subspan(static_cast<std::size_t>(y) * row_bytes(), row_bytes());
  }
  std::span<std::uint8_t> Row(int y) {
    return std::span(rgb).subspan(static_cast<std::size_t>(y) * row_bytes(), row_bytes());
  }
};

// A decoder allocates at most 12 bytes for each pixel of a picture within these limits; that of WebP also tables of up to
// 1.2 GB, for files made for it (docs/design/images.md).
struct PictureLimits {
  std::int64_t max_bytes = std::int64_t{32} << 20;   // of the file
  std::int64_t max_pixels = std::int64_t{64} << 20;  // width * height
  int max_side = 65535;                              // width, and height
  int max_scans = 100;                               // of a JPEG file
};

// Returns ok, or why a picture of this size is refused: a side of zero is kCorrupt, a size beyond the limits
// kInvalidArgument.
Status CheckSize(std::int64_t width, std::int64_t height, const PictureLimits& limits);

// Returns a black picture. Errors: those of CheckSize; kOutOfMemory.
Result<Picture> NewPicture(std::int64_t width, std::int64_t height, const PictureLimits& limits);

}  // namespace kvcache::image
