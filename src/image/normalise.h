// Makes the numbers that a tower takes of a picture's bytes.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "image/picture.h"
#include "kvcache/status.h"

namespace kvcache::image {

// Of each channel: red, green, blue. In GGUF: clip.vision.image_mean and image_std.
struct Normalisation {
  std::array<float, 3> mean{};
  std::array<float, 3> deviation{1, 1, 1};
};

// Three planes, red, green, blue, of rows.
struct Planes {
  int width = 0;
  int height = 0;
  std::vector<float> values;  // 3 * height * width
};

// Returns (byte / 255 - mean) / deviation, each of the three steps rounded to f32, in this order. Errors:
// kInvalidArgument: a mean or deviation that is not finite, a deviation of zero; kOutOfMemory.
Result<Planes> Normalise(const Picture& picture, const Normalisation& normalisation);

// Squares of a picture, each a row of numbers: of the red plane its rows, then of the green one, then of the blue one,
// which is the order of the weights of a convolution in GGUF.
struct Patches {
  int columns = 0;  // of the picture
  int rows = 0;
  int row_values = 0;         // 3 * side * side
  std::vector<float> values;  // columns * rows * row_values
};

// Returns the patches of `side` * `side` pixels. `block` is 1 for the order of text (rows, then columns); a larger one
// puts the block * block patches that become one token side by side: blocks in the order of text, and patches in it
// within a block. Errors: kInvalidArgument: a side of the planes is no multiple of `side` * `block`; kOutOfMemory.
Result<Patches> PatchesOf(const Planes& planes, int side, int block = 1);

}  // namespace kvcache::image
