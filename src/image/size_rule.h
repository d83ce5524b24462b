// The size to which a model's own processor brings a picture before its tower sees it. It decides how many tokens the
// picture has.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <variant>

#include "image/resize/pillow_resize.h"
#include "kvcache/status.h"

namespace kvcache::image {

// Every picture gets the same size (Gemma 3).
struct FixedSize {
  PictureSize size;
};

// The largest size with about the picture's aspect, of sides that are multiples of `unit`, that has at most `max_units`
// squares of it. Small pictures grow (Gemma 4; a unit is a token).
struct LargestSize {
  int unit = 48;
  int max_units = 280;
};

// The nearest multiples of `unit`; smaller or larger ones if the area is beyond the limits (Qwen 2 to 3 VL). Sides more than
// 200 to 1 are refused.
struct SizeWithinArea {
  int unit = 28;
  std::int64_t min_pixels = 3136;
  std::int64_t max_pixels = 12845056;
};

// Shrinks the picture to the longest edge, and rounds its sides up to multiples of `unit` (Pixtral).
struct SizeWithinEdge {
  int unit = 16;
  int longest_edge = 1024;
};

using SizeRule = std::variant<FixedSize, LargestSize, SizeWithinArea, SizeWithinEdge>;

// Returns the size. REQUIRES: `picture` has pixels. Errors: kInvalidArgument: the rule has a limit below 1, or the picture is
// too long and narrow for it.
Result<PictureSize> SizeFor(PictureSize picture, const SizeRule& rule);

}  // namespace kvcache::image
