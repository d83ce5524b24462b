// Resizes as Pillow does, bit for bit: most models' processors were made and trained with it.
//
// Thread safety: pure functions.
#pragma once

#include "image/picture.h"
#include "kvcache/status.h"

namespace kvcache::image {

struct PictureSize {
  int width = 0;
  int height = 0;
  bool operator==(const PictureSize&) const = default;
};

// Returns ok, or kInvalidArgument if no picture can be resized to `size`: a side is not 1 to 65,535, or it has more
// pixels than the default limits allow.
Status CheckNewSize(PictureSize size);

enum class ResizeFilter { kBilinear, kBicubic, kLanczos };

// Returns the picture stretched to `size`, whatever its aspect. Errors: those of CheckNewSize, also of the new width with
// the old height, which the first of two passes makes; kOutOfMemory.
Result<Picture> PillowResize(const Picture& picture, PictureSize size, ResizeFilter filter);

}  // namespace kvcache::image
