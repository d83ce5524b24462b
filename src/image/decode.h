// Decodes a file of a picture: PNG, JPEG, WebP, GIF (the first frame) or BMP.
//
// The size in the file's header is checked against the limits before pixels are allocated. What the pixels of
// each format mean in RGB (transparency, palettes, 16 bits, CMYK) is in docs/design/images.md.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "image/picture.h"
#include "kvcache/status.h"

namespace kvcache::image {

enum class PictureFormat { kPng, kJpeg, kWebp, kGif, kBmp };

// Returns "PNG", "JPEG" and so on.
std::string_view FormatName(PictureFormat format);

// Returns the format that the first bytes name. Errors: kUnsupported.
Result<PictureFormat> RecogniseFormat(std::span<const std::byte> file);

// Returns the picture as the Exif orientation of the file shows it. `name` begins messages ("picture 2").
// Errors: kInvalidArgument: beyond the limits; kUnsupported: another format, or a part of a format that is not
// offered; kCorrupt; kOutOfMemory.
Result<Picture> DecodePicture(std::span<const std::byte> file, std::string_view name,
                              const PictureLimits& limits = {});

}  // namespace kvcache::image
