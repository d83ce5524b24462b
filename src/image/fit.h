// The three ways in which programs bring a picture to the size that a model's tower takes. Their pixels differ, and so
// do the model's answers: each way is a type, so that none is taken for another (docs/design/images.md).
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <variant>

#include "image/picture.h"
#include "image/resize/pillow_resize.h"
#include "kvcache/status.h"

namespace kvcache::image {

// The models' own processors, with Pillow: the picture fills the size and loses its aspect.
struct Stretch {
  ResizeFilter filter = ResizeFilter::kBilinear;
};

// llama.cpp from its change 27594 on: Pillow's filters; the picture keeps its aspect, and bars fill the rest.
struct PadWithBars {
  ResizeFilter filter = ResizeFilter::kBilinear;
  std::array<std::uint8_t, 3> bars{};  // red, green, blue
};

// llama.cpp before that change: bars as above, and a bilinear filter with aligned corners, which skips pixels when it
// shrinks and rounds down.
struct PadWithBarsAligned {
  std::array<std::uint8_t, 3> bars{};
};

using Fitting = std::variant<Stretch, PadWithBars, PadWithBarsAligned>;

// Returns a picture of `size`. A picture that has it already stays as it is. Errors: those of PillowResize.
Result<Picture> Fit(const Picture& picture, PictureSize size, const Fitting& fitting);

// Returns the size of the picture between bars: the largest with its aspect, rounded up. REQUIRES: positive sizes.
PictureSize SizeBetweenBars(PictureSize picture, PictureSize size);

}  // namespace kvcache::image
