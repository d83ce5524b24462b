#include "kvcache_engine/picture.h"

#include <algorithm>

#include "base/little_endian.h"
#include "base/sha256.h"

namespace kvcache {
namespace {

constexpr std::size_t kIdsOfHash = 8;  // 31 bits of each word of a hash

}  // namespace

// A hash of the content and of the first cell's number gives the ids of eight cells. So a match of a whole picture is a
// match of at least 124 bits.
Picture::Picture(const std::array<std::byte, 32>& content, PictureShape shape)
    : shape_(shape), name_(HexText(content)) {
  const auto cells = static_cast<std::size_t>(std::max(shape.cells, 0));
  ids_.reserve(cells);
  std::vector<std::byte> text;
  Sha256Hash hash{};
  for (std::size_t cell = 0; cell < cells; ++cell) {
    if (cell % kIdsOfHash == 0) {
      text.assign(content.begin(), content.end());
      AppendLittleEndian(cell, 8, text);
      hash = Sha256Of(text);
    }
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      word = word << 8 | std::to_integer<std::uint32_t>(hash[cell % kIdsOfHash * 4 + i]);
    }
    ids_.push_back(static_cast<std::int32_t>(word | 0x80000000U));
  }
}

}  // namespace kvcache
