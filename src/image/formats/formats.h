// The decoder of each format. Each checks the size in the header before it allocates pixels, and leaves the
// picture as it is stored: without the orientation of Exif.
//
// Errors: those of CheckSize, kCorrupt, kUnsupported, kOutOfMemory. Messages speak of the picture as "its".
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <span>

#include "image/picture.h"
#include "kvcache/status.h"

namespace kvcache::image {

Result<Picture> DecodePng(std::span<const std::byte> file, const PictureLimits& limits);
Result<Picture> DecodeJpeg(std::span<const std::byte> file, const PictureLimits& limits);
Result<Picture> DecodeWebp(std::span<const std::byte> file, const PictureLimits& limits);
Result<Picture> DecodeGif(std::span<const std::byte> file, const PictureLimits& limits);
Result<Picture> DecodeBmp(std::span<const std::byte> file, const PictureLimits& limits);

}  // namespace kvcache::image
