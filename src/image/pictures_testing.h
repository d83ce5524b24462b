// Pictures for tests, and files of them that the formats' own libraries write.
#pragma once

#include <cstdio>  // before jpeglib.h, which uses FILE
// The library's headers in their order.
#include <jpeglib.h>
#include <png.h>
#include <webp/encode.h>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "image/picture.h"

namespace kvcache::image::testing {

inline std::span<const std::byte> BytesOf(std::string_view file) {
  return std::as_bytes(std::span(file.data(), file.size()));
}

// Pixels that all differ from their neighbours.
inline Picture Pattern(int width, int height) {
  Picture picture{width, height, {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (const int value : {x * 37 + y * 11, x * 5 + y * 91 + 128, x * y * 3 + 17}) {
        picture.rgb.push_back(static_cast<std::uint8_t>(value));
      }
    }
  }
  return picture;
}

inline Picture Flat(int width, int height, std::uint8_t red, std::uint8_t green,
                    std::uint8_t blue) {
  Picture picture{width, height, {}};
  for (int i = 0; i < width * height; ++i)
    picture.rgb.insert(picture.rgb.end(), {red, green, blue});
  return picture;
}

// Of rows in one of libpng's forms, PNG_FORMAT_RGB for those of a picture.
inline std::string PngOf(int width, int height, const void* rows,
                         png_uint_32 format = PNG_FORMAT_RGB) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = format;
  png_alloc_size_t bytes = 0;
  if (png_image_write_to_memory(&image, nullptr, &bytes, 0, rows, 0, nullptr) == 0) std::abort();
  std::string file(bytes, '\0');
  if (png_image_write_to_memory(&image, file.data(), &bytes, 0, rows, 0, nullptr) == 0)
    std::abort();
  return file.substr(0, bytes);
}
inline std::string PngOf(const Picture& picture) {
  return PngOf(picture.width, picture.height, picture.rgb.data());
}

// Of rows of as many channels as the space has (two if it is unknown), with the best quality, in one scan or those given.
inline std::string JpegOf(int width, int height, const std::uint8_t* rows, J_COLOR_SPACE space,
                          const std::vector<jpeg_scan_info>& scans = {}) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &bytes, &size);
  jpeg.image_width = static_cast<JDIMENSION>(width);
  jpeg.image_height = static_cast<JDIMENSION>(height);
  jpeg.input_components = space == JCS_GRAYSCALE ? 1
                          : space == JCS_UNKNOWN ? 2
                          : space == JCS_CMYK    ? 4
                                                 : 3;
  jpeg.in_color_space = space;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 100, TRUE);
  if (!scans.empty()) {
    jpeg.scan_info = scans.data();
    jpeg.num_scans = static_cast<int>(scans.size());
  }
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = const_cast<JSAMPLE*>(rows) + std::size_t{jpeg.next_scanline} * jpeg.image_width *
                                                 std::size_t(jpeg.input_components);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::string file(reinterpret_cast<const char*>(bytes), size);
  jpeg_destroy_compress(&jpeg);
  std::free(bytes);
  return file;
}
inline std::string JpegOf(const Picture& picture, const std::vector<jpeg_scan_info>& scans = {}) {
  return JpegOf(picture.width, picture.height, picture.rgb.data(), JCS_RGB, scans);
}
// Progressive: the means of blocks first, the rest by channel, twice with the lowest bit last for the first channel.
inline const std::vector<jpeg_scan_info> kProgressiveScans = {
    {3, {0, 1, 2}, 0, 0, 0, 1}, {3, {0, 1, 2}, 0, 0, 1, 0}, {1, {0}, 1, 63, 0, 1},
    {1, {0}, 1, 63, 1, 0},      {1, {1}, 1, 63, 0, 0},      {1, {2}, 1, 63, 0, 0}};

inline std::string WebpOf(const Picture& picture) {
  std::uint8_t* bytes = nullptr;
  const std::size_t size = WebPEncodeLosslessRGB(picture.rgb.data(), picture.width, picture.height,
                                                 static_cast<int>(picture.row_bytes()), &bytes);
  std::string file(reinterpret_cast<const char*>(bytes), size);
  WebPFree(bytes);
  return file;
}

// The lowest `count` bytes of a number, the lowest first.
inline std::string Little(std::uint64_t number, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i, number >>= 8) bytes += static_cast<char>(number);
  return bytes;
}
inline std::string Big(std::uint64_t number, int count) {
  std::string bytes = Little(number, count);
  return {bytes.rbegin(), bytes.rend()};
}

inline std::uint32_t PngChecksum(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc ^= static_cast<std::uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

// Returns the file with the right checksums of its chunks, as far as it has chunks: else damage is all found by them.
inline std::string WithPngChecksums(std::string file) {
  for (std::size_t at = 8; at + 12 <= file.size();) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i)
      length = length << 8 | static_cast<std::uint8_t>(file[at + i]);
    if (length > file.size() - at - 12) break;
    const std::string_view covered = std::string_view(file).substr(at + 4, length + 4);
    file.replace(at + 8 + length, 4, Big(PngChecksum(covered), 4));
    at += 12 + length;
  }
  return file;
}

// A TIFF block with an orientation, the type of whose value is given.
inline std::string ExifOf(int orientation, std::uint64_t type = 3) {
  return "II*" + std::string(1, '\0') + Little(8, 4) + Little(1, 2) + Little(274, 2) +
         Little(type, 2) + Little(1, 4) + Little(static_cast<std::uint64_t>(orientation), 4) +
         Little(0, 4);
}

}  // namespace kvcache::image::testing
