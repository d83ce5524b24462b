#include "image/picture.h"

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::image {

Status CheckSize(std::int64_t width, std::int64_t height, const PictureLimits& limits) {
  const auto size = [&] { return StrCat(width, " x ", height, " pixels"); };
  if (width <= 0 || height <= 0) return Corrupt(StrCat("its size is ", size()));
  if (width > limits.max_side || height > limits.max_side) {
    return InvalidArgument(
        StrCat("its size is ", size(), "; a side has at most ", limits.max_side, " pixels"));
  }
  if (width * height > limits.max_pixels) {
    return InvalidArgument(
        StrCat("its size is ", size(), "; a picture has at most ", limits.max_pixels, " pixels"));
  }
  return Status::Ok();
}

Result<Picture> NewPicture(std::int64_t width, std::int64_t height, const PictureLimits& limits) {
  KVCACHE_RETURN_IF_ERROR(CheckSize(width, height, limits));
  Picture picture{static_cast<int>(width), static_cast<int>(height), {}};
  const auto bytes = static_cast<std::size_t>(width * height) * 3;
  KVCACHE_RETURN_IF_ERROR(
      Guarded([&] { return StrCat("no memory for the ", bytes, " bytes of its pixels"); },
              [&] { picture.rgb.resize(bytes); }));
  return picture;
}

}  // namespace kvcache::image
