// Unicode's canonical composition (NFC), which some vocabularies were trained with: "e" and U+0301 become "é".
//
// The data are those of unicode_class.h's version (tools/unicode_classes). Source: the Unicode Standard, chapter
// 3.11 (Normalization Forms) and 3.12 (Hangul syllables).
//
// Thread safety: free functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvcache {

// Returns `text` in NFC: `text` itself if it is composed, else `storage`, which is overwritten. Cost: O(text), and
// O(n log n) in runs of n combining marks. REQUIRES: well-formed UTF-8.
std::string_view ComposeText(std::string_view text, std::string* storage);

// ---- Data

// A character and its parts, as far as they can be taken apart; 0 behind the last one. Hangul syllables have none.
struct Decomposition {
  std::uint32_t code_point;
  std::array<std::uint32_t, 4> parts;
};
// Marks of one combining class: `order` grows with the class, from 1. All other characters have order 0.
struct MarkOrder {
  std::uint32_t first;
  std::uint32_t last;
  std::uint32_t order;
};

// Each is in the order of the code points.
std::span<const Decomposition> Decompositions();
std::span<const std::uint32_t>
NeverComposed();  // characters with several parts that are always taken apart
std::span<const MarkOrder> MarkOrders();

}  // namespace kvcache
