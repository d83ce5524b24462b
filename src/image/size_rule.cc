#include "image/size_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::image {
namespace {

Status TooNarrow(PictureSize picture) {
  return InvalidArgument(StrCat("a picture of ", picture.width, " x ", picture.height,
                                " pixels is too long and narrow for this model"));
}

Status CheckLimits(std::int64_t unit, std::int64_t smallest, std::int64_t largest) {
  if (unit >= 1 && smallest >= 1 && largest >= smallest) return Status::Ok();
  return InvalidArgument(StrCat("sizes are multiples of ", unit, " within ", smallest, " to ",
                                largest, "; all have to be 1 or more, in this order"));
}

// The processors compute in f64, in the order of operations here.
int Multiple(double count, int unit) {
  return static_cast<int>(std::min(
             count, std::floor(std::numeric_limits<int>::max() / static_cast<double>(unit)))) *
         unit;
}

Result<PictureSize> SizeOf(PictureSize picture, const FixedSize& rule) {
  if (rule.size.width >= 1 && rule.size.height >= 1) return rule.size;
  return InvalidArgument(StrCat("a size of ", rule.size.width, " x ", rule.size.height,
                                " for a picture of ", picture.width, " x ", picture.height,
                                " pixels"));
}

Result<PictureSize> SizeOf(PictureSize picture, const LargestSize& rule) {
  KVCACHE_RETURN_IF_ERROR(CheckLimits(rule.unit, 1, rule.max_units));
  const double width = picture.width, height = picture.height, unit = rule.unit;
  const double scale = std::sqrt(rule.max_units * unit * unit / (width * height));
  PictureSize size{Multiple(std::floor(scale * width / unit), rule.unit),
                   Multiple(std::floor(scale * height / unit), rule.unit)};
  const auto long_side = [&](double aspect) {
    return Multiple(std::min(std::floor(aspect), static_cast<double>(rule.max_units)), rule.unit);
  };
  if (size.width == 0 && size.height == 0) return TooNarrow(picture);
  if (size.height == 0) return PictureSize{long_side(width / height), rule.unit};
  if (size.width == 0) return PictureSize{rule.unit, long_side(height / width)};
  return size;
}

Result<PictureSize> SizeOf(PictureSize picture, const SizeWithinArea& rule) {
  constexpr double kMaxAspect = 200;
  KVCACHE_RETURN_IF_ERROR(CheckLimits(rule.unit, rule.min_pixels, rule.max_pixels));
  const double width = picture.width, height = picture.height, unit = rule.unit;
  if (std::max(width, height) / std::min(width, height) > kMaxAspect) return TooNarrow(picture);
  // Halves go to the even number.
  const PictureSize nearest{Multiple(std::nearbyint(width / unit), rule.unit),
                            Multiple(std::nearbyint(height / unit), rule.unit)};
  const std::int64_t pixels = std::int64_t{nearest.width} * nearest.height;
  if (pixels > rule.max_pixels) {
    const double scale = std::sqrt(width * height / static_cast<double>(rule.max_pixels));
    const auto side = [&](double from) {
      return std::max(rule.unit, Multiple(std::floor(from / scale / unit), rule.unit));
    };
    return PictureSize{side(width), side(height)};
  }
  if (pixels < rule.min_pixels) {
    const double scale = std::sqrt(static_cast<double>(rule.min_pixels) / (width * height));
    const auto side = [&](double from) {
      return Multiple(std::ceil(from * scale / unit), rule.unit);
    };
    return PictureSize{side(width), side(height)};
  }
  return nearest;
}

Result<PictureSize> SizeOf(PictureSize picture, const SizeWithinEdge& rule) {
  KVCACHE_RETURN_IF_ERROR(CheckLimits(rule.unit, 1, rule.longest_edge));
  const double edge = rule.longest_edge;
  const double ratio = std::max(picture.width / edge, picture.height / edge);
  const auto side = [&](int from) {
    const double shrunk = ratio > 1 ? std::floor(from / ratio) : from;
    return Multiple(std::ceil(shrunk / rule.unit), rule.unit);
  };
  const PictureSize size{side(picture.width), side(picture.height)};
  if (size.width == 0 || size.height == 0) return TooNarrow(picture);
  return size;
}

}  // namespace

Result<PictureSize> SizeFor(PictureSize picture, const SizeRule& rule) {
  return std::visit([&](const auto& one) { return SizeOf(picture, one); }, rule);
}

}  // namespace kvcache::image
