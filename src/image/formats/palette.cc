#include "image/formats/palette.h"

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::image {

Palette Palette::Greys() {
  Palette greys;
  for (int i = 0; i < kMaxColours; ++i) {
    const auto grey = static_cast<std::uint8_t>(i);
    greys.Add(grey, grey, grey);
  }
  return greys;
}

Status Palette::Colour(std::span<const std::uint8_t> indices, std::span<std::uint8_t> rgb) const {
  std::uint8_t* out = rgb.data();
  for (const std::uint8_t index : indices) {
    if (index >= size_) {
      return Corrupt(StrCat("a pixel has colour ", index, "; its palette has ", size_));
    }
    for (const std::uint8_t channel : colours_[index]) *out++ = channel;
  }
  return Status::Ok();
}

Result<std::vector<std::uint8_t>> NewIndices(const Picture& picture) {
  return Guarded("no memory for the indices of its pixels",
                 [&]() -> Result<std::vector<std::uint8_t>> {
                   return std::vector<std::uint8_t>(picture.rgb.size() / 3);
                 });
}

}  // namespace kvcache::image
