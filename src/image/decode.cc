#include "image/decode.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "image/exif.h"
#include "image/formats/formats.h"
#include "image/orientation.h"

namespace kvcache::image {
namespace {

bool BeginsWith(std::span<const std::byte> file, std::string_view magic, std::size_t at = 0) {
  return file.size() >= at + magic.size() &&
         std::memcmp(file.data() + at, magic.data(), magic.size()) == 0;
}

Result<Picture> DecodeAs(PictureFormat format, std::span<const std::byte> file,
                         const PictureLimits& limits) {
  switch (format) {
    case PictureFormat::kPng: return DecodePng(file, limits);
    case PictureFormat::kJpeg: return DecodeJpeg(file, limits);
    case PictureFormat::kWebp: return DecodeWebp(file, limits);
    case PictureFormat::kGif: return DecodeGif(file, limits);
    case PictureFormat::kBmp: return DecodeBmp(file, limits);
  }
  return Status(StatusCode::kInternal, "no such format");
}

std::span<const std::byte> ExifOf(PictureFormat format, std::span<const std::byte> file) {
  switch (format) {
    case PictureFormat::kPng: return ExifOfPng(file);
    case PictureFormat::kJpeg: return ExifOfJpeg(file);
    case PictureFormat::kWebp: return ExifOfWebp(file);
    default: return {};
  }
}

Result<Picture> Decode(std::span<const std::byte> file, const PictureLimits& limits) {
  if (file.size() > static_cast<std::size_t>(limits.max_bytes)) {
    return InvalidArgument(
        StrCat("its file has ", file.size(), " bytes; at most ", limits.max_bytes, " are decoded"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const PictureFormat format, RecogniseFormat(file));
  auto picture = DecodeAs(format, file, limits);
  if (!picture.ok()) return std::move(picture).TakeStatus().WithContext(FormatName(format));
  return Oriented(*std::move(picture), OrientationOf(ExifOf(format, file)));
}

}  // namespace

std::string_view FormatName(PictureFormat format) {
  switch (format) {
    case PictureFormat::kPng: return "PNG";
    case PictureFormat::kJpeg: return "JPEG";
    case PictureFormat::kWebp: return "WebP";
    case PictureFormat::kGif: return "GIF";
    case PictureFormat::kBmp: return "BMP";
  }
  return "unknown";
}

Result<PictureFormat> RecogniseFormat(std::span<const std::byte> file) {
  if (BeginsWith(file, "\x89PNG\r\n\x1a\n")) return PictureFormat::kPng;
  if (BeginsWith(file, "\xff\xd8\xff")) return PictureFormat::kJpeg;
  if (BeginsWith(file, "RIFF") && BeginsWith(file, "WEBP", 8)) return PictureFormat::kWebp;
  if (BeginsWith(file, "GIF87a") || BeginsWith(file, "GIF89a")) return PictureFormat::kGif;
  if (BeginsWith(file, "BM")) return PictureFormat::kBmp;
  if (file.empty()) return Unsupported("its file is empty");
  const auto* text = reinterpret_cast<const char*>(file.data());
  return Unsupported(StrCat("its first bytes, ",
                            Quoted({text, std::min<std::size_t>(file.size(), 12)}),
                            ", are none of PNG, JPEG, WebP, GIF or BMP"));
}

Result<Picture> DecodePicture(std::span<const std::byte> file, std::string_view name,
                              const PictureLimits& limits) {
  auto picture = Decode(file, limits);
  if (!picture.ok()) return std::move(picture).TakeStatus().WithContext(name);
  return picture;
}

}  // namespace kvcache::image
