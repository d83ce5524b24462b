#include "image/resize/pillow_resize.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "image/resize/filter_taps.h"

namespace kvcache::image {
namespace {

constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

std::uint8_t ByteOf(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

// Both passes. May throw std::bad_alloc.
Picture ResizeRows(const Picture& from, int width, ResizeFilter filter) {
  const FilterTaps taps = MakeFilterTaps(from.width, width, filter);
  Picture to{width, from.height, {}};
  to.rgb.resize(to.row_bytes() * static_cast<std::size_t>(to.height));
  for (int y = 0; y < to.height; ++y) {
    const std::uint8_t* row = from.Row(y).data();
    std::uint8_t* out = to.Row(y).data();
    for (std::size_t x = 0; x < taps.windows.size(); ++x) {
      const std::uint8_t* pixel = row + static_cast<std::size_t>(taps.windows[x].first) * 3;
      std::int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (const std::int32_t weight : taps.Weights(x)) {
        red += pixel[0] * weight;
        green += pixel[1] * weight;
        blue += pixel[2] * weight;
        pixel += 3;
      }
      *out++ = ByteOf(red);
      *out++ = ByteOf(green);
      *out++ = ByteOf(blue);
    }
  }
  return to;
}

Picture ResizeColumns(const Picture& from, int height, ResizeFilter filter) {
  const FilterTaps taps = MakeFilterTaps(from.height, height, filter);
  Picture to{from.width, height, {}};
  const std::size_t row_bytes = from.row_bytes();
  to.rgb.resize(row_bytes * static_cast<std::size_t>(height));
  std::vector<std::int32_t> sums(row_bytes);
  for (std::size_t y = 0; y < taps.windows.size(); ++y) {
    std::ranges::fill(sums, kHalf);
    const std::uint8_t* row = from.Row(taps.windows[y].first).data();
    for (const std::int32_t weight : taps.Weights(y)) {
      for (std::size_t i = 0; i < row_bytes; ++i) sums[i] += row[i] * weight;
      row += row_bytes;
    }
    std::ranges::transform(sums, to.Row(static_cast<int>(y)).begin(), ByteOf);
  }
  return to;
}

}  // namespace

Status CheckNewSize(PictureSize size) {
  if (size.width > 0 && size.height > 0 && CheckSize(size.width, size.height, {}).ok())
    return Status::Ok();
  const PictureLimits limits;
  return InvalidArgument(StrCat("a picture cannot be resized to ", size.width, " x ", size.height,
                                " pixels: a side has 1 to ", limits.max_side,
                                ", and both together at most ", limits.max_pixels));
}

Result<Picture> PillowResize(const Picture& picture, PictureSize size, ResizeFilter filter) {
  KVCACHE_RETURN_IF_ERROR(CheckNewSize(size));
  KVCACHE_RETURN_IF_ERROR(CheckNewSize({size.width, picture.height}));
  return Guarded("no memory to resize a picture", [&]() -> Result<Picture> {
    if (size.width == picture.width && size.height == picture.height) return picture;
    if (size.width == picture.width) return ResizeColumns(picture, size.height, filter);
    if (size.height == picture.height) return ResizeRows(picture, size.width, filter);
    return ResizeColumns(ResizeRows(picture, size.width, filter), size.height, filter);
  });
}

}  // namespace kvcache::image
