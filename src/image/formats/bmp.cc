// BMP of Windows and OS/2, not compressed. Written here because the format is small (docs/dependencies.md).
#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>

#include "base/errors.h"
#include "base/strings.h"
#include "image/formats/byte_reader.h"
#include "image/formats/formats.h"
#include "image/formats/palette.h"

namespace kvcache::image {
namespace {

constexpr std::uint32_t kFileHeaderBytes = 14;
constexpr std::uint32_t kCoreHeaderBytes = 12;  // OS/2: sizes of 16 bits, colours of three bytes

// Takes a channel out of a pixel, and makes 8 bits of it.
class Channel {
 public:
  explicit Channel(std::uint32_t mask = 1)
      : mask_(mask), shift_(std::countr_zero(mask)), largest_(mask >> shift_) {}

  std::uint8_t Of(std::uint32_t pixel) const {
    return static_cast<std::uint8_t>(std::uint64_t{(pixel & mask_) >> shift_} * 255 / largest_);
  }

 private:
  std::uint32_t mask_;
  int shift_;
  std::uint32_t largest_;
};

struct BmpHeader {
  std::uint32_t pixels = 0;  // where they begin in the file
  std::int64_t width = 0;
  std::int64_t height = 0;
  bool from_top = false;
  std::uint32_t bits = 0;  // of a pixel
  std::array<Channel, 3> channels;
  Palette palette;
};

Result<std::array<Channel, 3>> ReadMasks(ByteReader& file) {
  std::array<Channel, 3> channels;
  for (Channel& channel : channels) {
    const std::uint32_t mask = file.U32();
    const std::uint32_t largest = mask == 0 ? 0 : mask >> std::countr_zero(mask);
    if (mask == 0 || (largest & (largest + 1)) != 0) {
      return Unsupported(
          StrCat("a channel has the bits ", mask, "; they have to be one row of ones"));
    }
    channel = Channel(mask);
  }
  return channels;
}

Status ReadColours(ByteReader& file, std::uint32_t count, std::size_t bytes, Palette& palette) {
  if (count > Palette::kMaxColours) {
    return Corrupt(StrCat("its palette has ", count, " colours; at most 256 have an index"));
  }
  for (; count > 0; --count) {
    ByteReader colour(file.Take(bytes));
    const auto blue = static_cast<std::uint8_t>(colour.U8());
    const auto green = static_cast<std::uint8_t>(colour.U8());
    palette.Add(static_cast<std::uint8_t>(colour.U8()), green, blue);
  }
  return Status::Ok();
}

// Sets the channels of pixels of 16 bits and more.
Status ReadChannels(ByteReader& file, std::uint32_t compression, BmpHeader& header) {
  constexpr std::uint32_t kMasks = 3, kMasksWithAlpha = 6;
  if (compression == kMasks || compression == kMasksWithAlpha) {
    // They follow the header of 40 bytes, and are a part of longer ones at the same place.
    file.Skip(kFileHeaderBytes + 40 - file.position());
    KVCACHE_ASSIGN_OR_RETURN(header.channels, ReadMasks(file));
  } else if (header.bits == 16) {
    header.channels = {Channel(0x7C00), Channel(0x3E0), Channel(0x1F)};
  } else {
    header.channels = {Channel(0xFF0000), Channel(0xFF00), Channel(0xFF)};
  }
  return Status::Ok();
}

Status CheckForm(std::uint32_t header_bytes, std::uint32_t bits, std::uint32_t compression) {
  if (header_bytes != kCoreHeaderBytes && (header_bytes < 40 || header_bytes > 124)) {
    return Unsupported(
        StrCat("its header has ", header_bytes, " bytes; 12 and 40 to 124 are decoded"));
  }
  if (bits != 1 && bits != 4 && bits != 8 && bits != 16 && bits != 24 && bits != 32) {
    return Corrupt(StrCat("a pixel has ", bits, " bits; BMP has 1, 4, 8, 16, 24 or 32"));
  }
  const bool masks = (compression == 3 || compression == 6) && (bits == 16 || bits == 32);
  if (compression != 0 && !masks) {
    return Unsupported(StrCat("it is compressed in form ", compression, " with ", bits,
                              " bits a pixel; only pixels as they are can be decoded"));
  }
  return Status::Ok();
}

Result<BmpHeader> ReadBmpHeader(std::span<const std::byte> bytes, const PictureLimits& limits) {
  ByteReader file(bytes);
  BmpHeader header;
  file.Skip(10);
  header.pixels = file.U32();
  const std::uint32_t header_bytes = file.U32();
  const bool core = header_bytes == kCoreHeaderBytes;
  const auto side = [&] {
    return core ? std::int64_t{file.U16()} : static_cast<std::int32_t>(file.U32());
  };
  header.width = side();
  const std::int64_t height = side();
  header.height = std::abs(height);
  header.from_top = height < 0;
  file.Skip(2);  // planes
  header.bits = file.U16();
  const std::uint32_t compression = core ? 0 : file.U32();
  if (file.ended()) return Corrupt("the file ends within its header");
  KVCACHE_RETURN_IF_ERROR(CheckForm(header_bytes, header.bits, compression));
  KVCACHE_RETURN_IF_ERROR(CheckSize(header.width, header.height, limits));
  if (header.bits > 8) {
    KVCACHE_RETURN_IF_ERROR(ReadChannels(file, compression, header));
  } else {
    if (!core) file.Skip(12);  // bytes, and pixels a metre
    std::uint32_t colours = core ? 0 : file.U32();
    if (colours == 0) colours = 1u << header.bits;
    file.Skip(kFileHeaderBytes + header_bytes - file.position());
    KVCACHE_RETURN_IF_ERROR(ReadColours(file, colours, core ? 3 : 4, header.palette));
  }
  if (file.ended()) return Corrupt("the file ends within its header");
  return header;
}

void ReadColouredRow(const BmpHeader& header, std::span<const std::byte> row,
                     std::span<std::uint8_t> rgb) {
  const std::size_t pixel_bytes = header.bits / 8;
  std::uint8_t* out = rgb.data();
  for (std::size_t x = 0; x < rgb.size() / 3; ++x) {
    const auto pixel =
        static_cast<std::uint32_t>(ReadLittleEndian(row.subspan(x * pixel_bytes, pixel_bytes)));
    for (const Channel& channel : header.channels) *out++ = channel.Of(pixel);
  }
}

Status ReadIndexedRow(const BmpHeader& header, std::span<const std::byte> row,
                      std::span<std::uint8_t> indices, std::span<std::uint8_t> rgb) {
  const std::size_t each = 8 / header.bits;  // pixels of a byte, the leftmost in its highest bits
  for (std::size_t x = 0; x < indices.size(); ++x) {
    const auto byte = std::to_integer<std::uint32_t>(row[x / each]);
    const std::size_t shift = (each - 1 - x % each) * header.bits;
    indices[x] = static_cast<std::uint8_t>(byte >> shift & ((1u << header.bits) - 1));
  }
  return header.palette.Colour(indices, rgb);
}

}  // namespace

Result<Picture> DecodeBmp(std::span<const std::byte> file, const PictureLimits& limits) {
  KVCACHE_ASSIGN_OR_RETURN(const BmpHeader header, ReadBmpHeader(file, limits));
  const std::int64_t row_bits = header.width * header.bits;
  const auto row_bytes = static_cast<std::size_t>((row_bits + 7) / 8);
  const auto stride = static_cast<std::size_t>((row_bits + 31) / 32 * 4);
  const auto rows = static_cast<std::size_t>(header.height);
  const std::size_t needed = (rows - 1) * stride + row_bytes;  // the last row may lack its padding
  if (header.pixels > file.size() || file.size() - header.pixels < needed) {
    return Corrupt(StrCat("its pixels need ", needed, " bytes from byte ", header.pixels,
                          "; the file has ", file.size()));
  }
  KVCACHE_ASSIGN_OR_RETURN(Picture picture, NewPicture(header.width, header.height, limits));
  std::vector<std::uint8_t> indices;
  KVCACHE_RETURN_IF_ERROR(Guarded("no memory for a row",
                                  [&] { indices.resize(static_cast<std::size_t>(header.width)); }));
  for (std::size_t i = 0; i < rows; ++i) {
    const auto row = file.subspan(header.pixels + i * stride, row_bytes);
    const auto out = picture.Row(static_cast<int>(header.from_top ? i : rows - 1 - i));
    if (header.bits > 8) {
      ReadColouredRow(header, row, out);
    } else {
      KVCACHE_RETURN_IF_ERROR(ReadIndexedRow(header, row, indices, out));
    }
  }
  return picture;
}

}  // namespace kvcache::image
