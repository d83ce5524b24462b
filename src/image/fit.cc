#include "image/fit.h"

#include <algorithm>
#include <cmath>

#include "image/resize/aligned_bilinear.h"

namespace kvcache::image {
namespace {

Result<Picture> WithBars(const Picture& picture, PictureSize size,
                         const std::array<std::uint8_t, 3>& bars) {
  KVCACHE_ASSIGN_OR_RETURN(Picture whole, NewPicture(size.width, size.height, {}));
  for (std::size_t i = 0; i < whole.rgb.size(); ++i) whole.rgb[i] = bars[i % 3];
  const auto left = static_cast<std::size_t>((size.width - picture.width) / 2);
  const int top = (size.height - picture.height) / 2;
  for (int y = 0; y < picture.height; ++y) {
    std::ranges::copy(picture.Row(y), whole.Row(top + y).subspan(left * 3).begin());
  }
  return whole;
}

template <class... Ways>
struct Overloaded : Ways... {
  using Ways::operator()...;
};
template <class... Ways>
Overloaded(Ways...) -> Overloaded<Ways...>;

}  // namespace

PictureSize SizeBetweenBars(PictureSize picture, PictureSize size) {
  const float scale =
      std::min(static_cast<float>(size.width) / static_cast<float>(picture.width),
               static_cast<float>(size.height) / static_cast<float>(picture.height));
  const auto side = [scale](int from, int largest) {
    return std::min(static_cast<int>(std::ceil(static_cast<float>(from) * scale)), largest);
  };
  return {side(picture.width, size.width), side(picture.height, size.height)};
}

Result<Picture> Fit(const Picture& picture, PictureSize size, const Fitting& fitting) {
  KVCACHE_RETURN_IF_ERROR(CheckNewSize(size));
  const PictureSize from{picture.width, picture.height};
  if (from == size) return PillowResize(picture, size, {});  // a copy
  const auto stretch = [&](const Stretch& way) { return PillowResize(picture, size, way.filter); };
  const auto pad = [&](const PadWithBars& way) -> Result<Picture> {
    KVCACHE_ASSIGN_OR_RETURN(const Picture middle,
                             PillowResize(picture, SizeBetweenBars(from, size), way.filter));
    return WithBars(middle, size, way.bars);
  };
  const auto pad_aligned = [&](const PadWithBarsAligned& way) -> Result<Picture> {
    KVCACHE_ASSIGN_OR_RETURN(const Picture middle,
                             AlignedBilinearResize(picture, SizeBetweenBars(from, size)));
    return WithBars(middle, size, way.bars);
  };
  return std::visit(Overloaded{stretch, pad, pad_aligned}, fitting);
}

}  // namespace kvcache::image
