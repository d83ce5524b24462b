#include "image/orientation.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace kvcache::image {
namespace {

// Where a pixel of the shown picture is stored.
struct Steps {
  bool transposed, from_right, from_bottom;
};

Steps StepsOf(Orientation orientation) {
  switch (orientation) {
    case Orientation::kUpright: return {false, false, false};
    case Orientation::kMirrored: return {false, true, false};
    case Orientation::kHalfTurn: return {false, true, true};
    case Orientation::kFlipped: return {false, false, true};
    case Orientation::kTransposed: return {true, false, false};
    case Orientation::kQuarterTurn: return {true, false, true};
    case Orientation::kTransversed: return {true, true, true};
    case Orientation::kThreeQuarterTurn: return {true, true, false};
  }
  return {false, false, false};
}

}  // namespace

Result<Picture> Oriented(Picture picture, Orientation orientation) {
  if (orientation == Orientation::kUpright) return picture;
  const auto [transposed, from_right, from_bottom] = StepsOf(orientation);
  Picture shown{
      transposed ? picture.height : picture.width, transposed ? picture.width : picture.height, {}};
  KVCACHE_RETURN_IF_ERROR(
      Guarded("no memory to turn the picture", [&] { shown.rgb.resize(picture.rgb.size()); }));
  std::uint8_t* out = shown.rgb.data();
  for (int y = 0; y < shown.height; ++y) {
    for (int x = 0; x < shown.width; ++x) {
      const int column = transposed ? y : x;
      const int row = transposed ? x : y;
      const std::size_t at =
          static_cast<std::size_t>(from_bottom ? picture.height - 1 - row : row) *
              picture.row_bytes() +
          static_cast<std::size_t>(from_right ? picture.width - 1 - column : column) * 3;
      out = std::copy_n(picture.rgb.data() + at, 3, out);
    }
  }
  return shown;
}

}  // namespace kvcache::image
