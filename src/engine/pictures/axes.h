// Positions of three axes: time, row and column. A text advances all three. A picture's cells have the time of its first
// cell, and their row and column behind it; what follows continues behind the largest of them.
//
//   text a b, a picture of 3 x 2 cells, text c      index    0 1  2 3 4 5 6 7  8
//                                                   time     0 1  2 2 2 2 2 2  5
//                                                   row      0 1  2 2 2 3 3 3  5
//                                                   column   0 1  2 3 4 2 3 4  5
//
// Thread safety: pure functions.
#pragma once

#include <span>

#include "kvcache_engine/picture.h"

namespace kvcache {

// Writes the three positions of the tokens [begin, begin + count) of a text with these pictures to axes[at], axes[stride +
// at] and axes[2 * stride + at], and so on. REQUIRES: the axes have 3 * stride values, and room behind `at`.
void WriteAxes(std::span<const PromptPicture> pictures, Position begin, Position count,
               std::size_t at, std::span<Position> axes);

}  // namespace kvcache
