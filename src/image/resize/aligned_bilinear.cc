#include "image/resize/aligned_bilinear.h"

#include <algorithm>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::image {
namespace {

// Where a new pixel lies between two old ones of a line.
struct Between {
  int first, second;
  float share;  // of the second
};

Between BetweenOf(int pixel, int from, int to) {
  const float step = to > 1 ? static_cast<float>(from - 1) / static_cast<float>(to - 1) : 0.0F;
  const float at = static_cast<float>(pixel) * step;
  const int first = std::min(static_cast<int>(at), from - 1);
  return {first, std::min(first + 1, from - 1), at - static_cast<float>(first)};
}

float Mixed(float a, float b, float share) {
  return a + (b - a) * share;
}

}  // namespace

Result<Picture> AlignedBilinearResize(const Picture& picture, PictureSize size) {
  KVCACHE_RETURN_IF_ERROR(CheckNewSize(size));
  KVCACHE_ASSIGN_OR_RETURN(Picture to, NewPicture(size.width, size.height, {}));
  std::uint8_t* out = to.rgb.data();
  for (int y = 0; y < size.height; ++y) {
    const Between row = BetweenOf(y, picture.height, size.height);
    const std::uint8_t* upper = picture.Row(row.first).data();
    const std::uint8_t* lower = picture.Row(row.second).data();
    for (int x = 0; x < size.width; ++x) {
      const Between column = BetweenOf(x, picture.width, size.width);
      for (int channel = 0; channel < 3; ++channel) {
        const int left = column.first * 3 + channel;
        const int right = column.second * 3 + channel;
        const float above = Mixed(upper[left], upper[right], column.share);
        const float below = Mixed(lower[left], lower[right], column.share);
        *out++ = static_cast<std::uint8_t>(Mixed(above, below, row.share));
      }
    }
  }
  return to;
}

}  // namespace kvcache::image
