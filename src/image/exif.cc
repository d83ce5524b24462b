#include "image/exif.h"

#include <cstdint>
#include <cstring>
#include <string_view>

namespace kvcache::image {
namespace {

using Block = std::span<const std::byte>;

bool Begins(Block block, std::string_view text) {
  return block.size() >= text.size() && std::memcmp(block.data(), text.data(), text.size()) == 0;
}

// Returns the block without the six bytes that JPEG has before TIFF, and some writers put elsewhere too.
Block WithoutName(Block block) {
  constexpr std::string_view kName("Exif\0\0", 6);
  return Begins(block, kName) ? block.subspan(kName.size()) : block;
}

// Returns the number of all of `bytes`.
std::size_t NumberOf(Block bytes, bool big_endian) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    number =
        number << 8 | std::to_integer<std::size_t>(bytes[big_endian ? i : bytes.size() - 1 - i]);
  }
  return number;
}

// Reads numbers of either order. Beyond the end, zeros.
class TiffReader {
 public:
  explicit TiffReader(Block bytes) : bytes_(bytes), big_endian_(Begins(bytes, "MM")) {}

  bool is_tiff() const { return (big_endian_ || Begins(bytes_, "II")) && At(2, 2) == 42; }
  std::size_t size() const { return bytes_.size(); }
  std::size_t At(std::size_t offset, std::size_t count) const {
    if (offset > bytes_.size() || count > bytes_.size() - offset) return 0;
    return NumberOf(bytes_.subspan(offset, count), big_endian_);
  }

 private:
  Block bytes_;
  bool big_endian_;
};

// Returns the value of an entry of 12 bytes (tag, type, count, value) if it is one whole number.
std::size_t ValueOf(const TiffReader& tiff, std::size_t entry) {
  constexpr std::size_t kShort = 3, kLong = 4;
  if (tiff.At(entry + 4, 4) != 1) return 0;
  switch (tiff.At(entry + 2, 2)) {
    case kShort: return tiff.At(entry + 8, 2);
    case kLong: return tiff.At(entry + 8, 4);
    default: return 0;
  }
}

}  // namespace

Orientation OrientationOf(std::span<const std::byte> bytes) {
  constexpr std::size_t kOrientationTag = 274, kEntryBytes = 12;
  const TiffReader tiff(bytes);
  std::size_t value = 1;
  if (tiff.is_tiff()) {
    const std::size_t directory = tiff.At(4, 4);
    const std::size_t entries = tiff.At(directory, 2);
    for (std::size_t i = 0; i < entries; ++i) {
      const std::size_t entry = directory + 2 + i * kEntryBytes;
      if (entry + kEntryBytes > tiff.size()) break;
      if (tiff.At(entry, 2) == kOrientationTag) value = ValueOf(tiff, entry);
    }
  }
  return value >= 1 && value <= 8 ? static_cast<Orientation>(value) : Orientation::kUpright;
}

std::span<const std::byte> ExifOfPng(std::span<const std::byte> file) {
  constexpr std::size_t kAround = 12;  // length, name; checksum
  Block rest = file.subspan(8);
  while (rest.size() >= kAround) {
    const std::size_t length = NumberOf(rest.first(4), true);
    if (length > rest.size() - kAround) break;
    if (Begins(rest.subspan(4), "eXIf")) return WithoutName(rest.subspan(8, length));
    rest = rest.subspan(kAround + length);
  }
  return {};
}

std::span<const std::byte> ExifOfJpeg(std::span<const std::byte> file) {
  constexpr std::byte kMark{0xFF}, kExif{0xE1}, kPixels{0xDA};
  Block rest = file.subspan(2);
  while (rest.size() >= 4 && rest[0] == kMark && rest[1] != kPixels) {
    if (rest[1] == kMark) {  // a filling byte
      rest = rest.subspan(1);
      continue;
    }
    const std::size_t length = NumberOf(rest.subspan(2, 2), true);  // with its own two bytes
    if (length < 2 || length > rest.size() - 2) break;
    const Block segment = rest.subspan(4, length - 2);
    if (rest[1] == kExif && Begins(segment, std::string_view("Exif\0", 5)))
      return WithoutName(segment);
    rest = rest.subspan(2 + length);
  }
  return {};
}

std::span<const std::byte> ExifOfWebp(std::span<const std::byte> file) {
  constexpr std::size_t kHead = 8;  // name, length
  Block rest = file.subspan(12);
  while (rest.size() >= kHead) {
    const std::size_t length = NumberOf(rest.subspan(4, 4), false);
    if (length > rest.size() - kHead) break;
    if (Begins(rest, "EXIF")) return WithoutName(rest.subspan(kHead, length));
    const std::size_t padded = length + length % 2;
    if (padded > rest.size() - kHead) break;
    rest = rest.subspan(kHead + padded);
  }
  return {};
}

}  // namespace kvcache::image
