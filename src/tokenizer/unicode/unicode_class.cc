#include "tokenizer/unicode/unicode_class.h"

#include <algorithm>
#include <map>

namespace kvcache {

UnicodeTable::UnicodeTable() {
  using Block = std::array<UnicodeClass, 256>;
  std::map<Block, std::uint16_t> known;
  const auto ranges = UnicodeRanges();
  std::size_t range = 0;
  for (std::uint32_t first = 0; first < 0x110000; first += 256) {
    Block block{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      if (range + 1 < ranges.size() && ranges[range + 1].first <= first + i) ++range;
      block[i] = ranges[range].kind;
    }
    const auto [at, fresh] = known.emplace(block, static_cast<std::uint16_t>(known.size()));
    if (fresh) blocks_.insert(blocks_.end(), block.begin(), block.end());
    block_of_[first >> 8] = at->second;
  }
}

const UnicodeTable& UnicodeClasses() {
  static const UnicodeTable table;
  return table;
}

}  // namespace kvcache
