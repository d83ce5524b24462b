// The order in which a tower takes a picture's patches, and what belongs to each of them in this order.
//
// Patches that become one token stand side by side; tokens of one window stand side by side. So a window is one run of
// rows, and a token's patches are one column of merge * merge times the width.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache/status.h"
#include "kvcache/types.h"
#include "vision/prepared_picture.h"

namespace kvcache::vision {

struct PatchOrder {
  PictureGrid grid;                       // of patches
  std::vector<Position> rows, columns;    // [patches]: where a patch is in the picture
  std::vector<std::int32_t> tokens;       // [tokens]: each token's number in the order of text
  std::vector<std::int32_t> window_ends;  // [windows]: one behind each window's last patch
};

// Returns the order for tokens of merge * merge patches in windows of `window` * `window` tokens, smaller at the right and
// the lower edge; 0: one window. REQUIRES: the grid's sides are multiples of `merge`. Errors: kOutOfMemory.
Result<PatchOrder> OrderPatches(PictureGrid patches, int merge, int window);

}  // namespace kvcache::vision
