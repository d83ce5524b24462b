// What the fuzzers of picture formats share: decoding any bytes, and the contract of what comes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz_input.h"
#include "image/exif.h"
#include "image/orientation.h"
#include "image/picture.h"

namespace kvcache::image {

// Small, so that the time goes into files and not into pixels.
inline constexpr PictureLimits kFuzzLimits{.max_pixels = 1 << 16};

inline void CheckPicture(const Picture& picture) {
  Check(CheckSize(picture.width, picture.height, kFuzzLimits).ok());
  Check(picture.rgb.size() == picture.row_bytes() * static_cast<std::size_t>(picture.height));
}

// `decode` is a function of formats.h, `exif` one of exif.h.
template <class DecodeFunction, class ExifFunction>
void FuzzFormat(const std::uint8_t* data, std::size_t size, DecodeFunction decode,
                ExifFunction exif) {
  const auto file = std::as_bytes(std::span(data, size));
  auto picture = decode(file, kFuzzLimits);
  if (!picture.ok()) {
    Check(!picture.status().message().empty());
    Check(picture.status().code() != StatusCode::kInternal);
    return;
  }
  CheckPicture(*picture);
  const Orientation orientation = OrientationOf(exif(file));
  const auto turned = Oriented(*std::move(picture), orientation);
  Check(turned.ok());
  CheckPicture(*turned);
}

inline std::span<const std::byte> NoExif(std::span<const std::byte>) {
  return {};
}

}  // namespace kvcache::image
