// GIF, the first frame. Written here because the format is small (docs/dependencies.md).
#include <algorithm>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "image/formats/byte_reader.h"
#include "image/formats/formats.h"
#include "image/formats/gif_lzw.h"
#include "image/formats/palette.h"

namespace kvcache::image {
namespace {

constexpr std::uint32_t kHasPalette = 0x80;
constexpr std::uint32_t kInterlaced = 0x40;

Palette ReadGifPalette(ByteReader& file, std::uint32_t flags) {
  Palette palette;
  for (int left = 2 << (flags & 7); left > 0; --left) {
    const auto red = static_cast<std::uint8_t>(file.U8());
    const auto green = static_cast<std::uint8_t>(file.U8());
    palette.Add(red, green, static_cast<std::uint8_t>(file.U8()));
  }
  return palette;
}

void SkipBlocks(ByteReader& file) {
  while (const std::uint32_t size = file.U8()) file.Skip(size);
}

struct Frame {
  std::uint32_t x, y, width, height, flags;
};

// What comes before the first frame's pixels.
struct GifHeader {
  std::uint32_t width = 0;  // of the screen
  std::uint32_t height = 0;
  Palette palette;
  std::uint8_t background = 0;  // the index of pixels that the frame does not cover
  Frame frame{};
};

// Reads an extension, behind its mark. Only the transparent index is of use.
void ReadExtension(ByteReader& file, GifHeader& header) {
  constexpr std::uint32_t kGraphicControl = 0xF9;
  if (file.U8() == kGraphicControl) {
    ByteReader block(file.Take(file.U8()));
    const bool has_transparency = (block.U8() & 1) != 0;
    block.Skip(2);  // how long the frame is shown
    const std::uint32_t index = block.U8();
    if (has_transparency && !block.ended()) header.background = static_cast<std::uint8_t>(index);
  }
  SkipBlocks(file);
}

Result<GifHeader> ReadGifHeader(ByteReader& file) {
  GifHeader header;
  file.Skip(6);  // the name of the format
  header.width = file.U16();
  header.height = file.U16();
  const std::uint32_t flags = file.U8();
  file.Skip(2);  // a background that no program shows, and the aspect of pixels
  std::optional<Palette> palette;
  if ((flags & kHasPalette) != 0) palette = ReadGifPalette(file, flags);
  while (!file.ended()) {
    constexpr std::uint32_t kExtension = 0x21, kFrame = 0x2C, kEnd = 0x3B;
    const std::uint32_t mark = file.U8();
    if (mark == kExtension) {
      ReadExtension(file, header);
    } else if (mark == kFrame) {
      Frame& frame = header.frame;
      for (std::uint32_t* field : {&frame.x, &frame.y, &frame.width, &frame.height})
        *field = file.U16();
      frame.flags = file.U8();
      if ((frame.flags & kHasPalette) != 0) palette = ReadGifPalette(file, frame.flags);
      if (file.ended()) break;
      header.palette = palette.value_or(Palette::Greys());
      return header;
    } else if (mark == kEnd) {
      return Corrupt("it has no frame");
    } else if (!file.ended()) {
      return Corrupt(StrCat("byte ", file.position() - 1, " is ", mark,
                            "; a frame or an extension begins with 44 or 33"));
    }
  }
  return Corrupt("the file ends before its first frame");
}

// Returns the row of the picture that is stored as row `i` of an interlaced one.
std::uint32_t InterlacedRow(std::uint32_t i, std::uint32_t height) {
  constexpr struct { std::uint32_t first, step; } kPasses[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};
  for (const auto& [first, step] : kPasses) {
    const std::uint32_t rows = height > first ? (height - first - 1) / step + 1 : 0;
    if (i < rows) return first + i * step;
    i -= rows;
  }
  return height - 1;  // not reached: the passes have `height` rows
}

}  // namespace

Result<Picture> DecodeGif(std::span<const std::byte> file, const PictureLimits& limits) {
  ByteReader reader(file);
  KVCACHE_ASSIGN_OR_RETURN(const GifHeader header, ReadGifHeader(reader));
  const Frame& frame = header.frame;
  KVCACHE_RETURN_IF_ERROR(CheckSize(frame.width, frame.height, limits));
  KVCACHE_ASSIGN_OR_RETURN(Picture picture,
                           NewPicture(std::max(header.width, frame.x + frame.width),
                                      std::max(header.height, frame.y + frame.height), limits));
  KVCACHE_ASSIGN_OR_RETURN(std::vector<std::uint8_t> indices, NewIndices(picture));
  const auto pixels = std::span(indices).first(std::size_t{frame.width} * frame.height);
  KVCACHE_RETURN_IF_ERROR(ReadGifPixels(reader, pixels));

  const bool covers =
      std::cmp_equal(frame.width, picture.width) && std::cmp_equal(frame.height, picture.height);
  if (!covers) {
    const std::uint8_t background[] = {header.background};
    KVCACHE_RETURN_IF_ERROR(header.palette.Colour(background, std::span(picture.rgb).first(3)));
    for (std::size_t i = 3; i < picture.rgb.size(); ++i) picture.rgb[i] = picture.rgb[i - 3];
  }
  for (std::uint32_t i = 0; i < frame.height; ++i) {
    const std::uint32_t y = (frame.flags & kInterlaced) != 0 ? InterlacedRow(i, frame.height) : i;
    KVCACHE_RETURN_IF_ERROR(header.palette.Colour(
        pixels.subspan(std::size_t{i} * frame.width, frame.width),
        picture.Row(static_cast<int>(frame.y + y)).subspan(std::size_t{frame.x} * 3)));
  }
  return picture;
}

}  // namespace kvcache::image
