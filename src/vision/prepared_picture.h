// A picture as a tower takes it, before the tower's own work: decoded, turned upright, brought to the tower's size.
//
//   file → pixels → pixels of the tower's size → patches → tokens
//
// Thread safety: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "image/picture.h"
#include "image/resize/pillow_resize.h"
#include "kvcache/status.h"
#include "vision/vision_settings.h"

namespace kvcache::vision {

// A grid of a picture's patches, or of its tokens.
struct PictureGrid {
  int columns = 0;
  int rows = 0;
  int count() const { return columns * rows; }
  bool operator==(const PictureGrid&) const = default;
};

// What a picture becomes: known from its size alone.
struct PictureLayout {
  image::PictureSize size;  // for the tower, pixels
  PictureGrid patches;
  PictureGrid tokens;
  int token_count =
      0;  // the embeddings that the tower makes: those of the grid, and what stands between its rows
  bool operator==(const PictureLayout&) const = default;
};

struct PreparedPicture {
  image::Picture pixels;  // of layout.size
  PictureLayout layout;
};

// Returns the layout of a picture of this size. Errors: those of image::SizeFor; kInvalidArgument: more than
// kMaxPatches.
Result<PictureLayout> LayoutOf(image::PictureSize picture, const VisionSettings& settings);
inline constexpr std::int64_t kMaxPatches = 1 << 18;

// Decodes and resizes a picture. It holds the decoded picture and the resized one at most, and what image::DecodePicture
// holds; call it for one picture at a time. `name` begins messages ("picture 2"). Errors: those of
// image::DecodePicture and of LayoutOf; kOutOfMemory.
Result<PreparedPicture> Prepare(std::span<const std::byte> file, std::string_view name,
                                const VisionSettings& settings,
                                const image::PictureLimits& limits = {});

}  // namespace kvcache::vision
