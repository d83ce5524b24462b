// How a stored picture is turned to be shown.
//
// Thread safety: pure functions.
#pragma once

#include "image/picture.h"
#include "kvcache/status.h"

namespace kvcache::image {

// The numbers of Exif (tag 274): what is done to the stored picture, turns are clockwise.
enum class Orientation {
  kUpright = 1,
  kMirrored = 2,  // left and right change places
  kHalfTurn = 3,
  kFlipped = 4,  // top and bottom change places
  kTransposed = 5,
  kQuarterTurn = 6,
  kTransversed = 7,  // mirrored at the other diagonal
  kThreeQuarterTurn = 8,
};

// Returns the turned picture. From kTransposed on width and height change places. Errors: kOutOfMemory.
Result<Picture> Oriented(Picture picture, Orientation orientation);

}  // namespace kvcache::image
