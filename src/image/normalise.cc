#include "image/normalise.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::image {
namespace {

using ByteValues = std::array<float, 256>;

ByteValues NormalisedBytes(float mean, float deviation) {
  ByteValues values{};
  for (std::size_t byte = 0; byte < values.size(); ++byte) {
    const float share = static_cast<float>(byte) / 255.0F;
    const float centred = share - mean;
    values[byte] = centred / deviation;
  }
  return values;
}

// Writes the patch whose first pixel is (x, y).
float* WritePatch(const Planes& planes, std::size_t x, std::size_t y, std::size_t side,
                  float* out) {
  const auto width = static_cast<std::size_t>(planes.width);
  const auto height = static_cast<std::size_t>(planes.height);
  for (std::size_t channel = 0; channel < 3; ++channel) {
    for (std::size_t row = 0; row < side; ++row) {
      const float* from = planes.values.data() + (channel * height + y + row) * width + x;
      out = std::copy_n(from, side, out);
    }
  }
  return out;
}

}  // namespace

Result<Planes> Normalise(const Picture& picture, const Normalisation& normalisation) {
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const float mean = normalisation.mean[channel];
    const float deviation = normalisation.deviation[channel];
    if (!std::isfinite(mean) || !std::isfinite(deviation) || deviation == 0.0F) {
      return InvalidArgument(StrCat("channel ", channel, " has mean ", mean, " and deviation ",
                                    deviation,
                                    "; both have to be finite, and the deviation not zero"));
    }
  }
  Planes planes{picture.width, picture.height, {}};
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a picture's numbers",
                                  [&] { planes.values.resize(picture.rgb.size()); }));
  const std::size_t pixels = picture.rgb.size() / 3;
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const ByteValues values =
        NormalisedBytes(normalisation.mean[channel], normalisation.deviation[channel]);
    float* out = planes.values.data() + channel * pixels;
    for (std::size_t i = 0; i < pixels; ++i) out[i] = values[picture.rgb[i * 3 + channel]];
  }
  return planes;
}

Result<Patches> PatchesOf(const Planes& planes, int side, int block) {
  const std::int64_t step = std::int64_t{side} * block;
  if (side <= 0 || block <= 0 || planes.width <= 0 || planes.height <= 0 ||
      planes.width % step != 0 || planes.height % step != 0) {
    return InvalidArgument(StrCat("a picture of ", planes.width, " x ", planes.height,
                                  " pixels is not made of blocks of ", block, " x ", block,
                                  " patches of ", side, " x ", side, " pixels"));
  }
  Patches patches{planes.width / side, planes.height / side, 3 * side * side, {}};
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a picture's patches",
                                  [&] { patches.values.resize(planes.values.size()); }));
  float* out = patches.values.data();
  for (int top = 0; top < patches.rows; top += block) {
    for (int left = 0; left < patches.columns; left += block) {
      for (int i = 0; i < block * block; ++i) {
        out = WritePatch(planes, std::size_t(left + i % block) * std::size_t(side),
                         std::size_t(top + i / block) * std::size_t(side), std::size_t(side), out);
      }
    }
  }
  return patches;
}

}  // namespace kvcache::image
