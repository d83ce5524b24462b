// Classes of prefixes that are expected to return alike.
//
// The family is the number of requests that have used the prefix. Within it, a prefix that was used
// once is classed by the length of the answer: a short answer to a long prompt is often one of several
// questions about a document. A prefix that was used again is classed by the number of new tokens of its
// last request: short questions follow each other, and a long new part is often the last one.
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kvcache/types.h"

namespace kvcache::prefix {

inline constexpr std::int32_t kUseFamilies = 4;  // more uses than this are one family
inline constexpr int kScales = 8;                // classes within a family, by powers of two
inline constexpr int kUseClasses = kUseFamilies * kScales;

constexpr int FamilyOf(int of_class) {
  return of_class / kScales;
}

// Returns min(kScales - 1, floor(log2(1 + value / unit))).
constexpr int ScaleOf(double value, double unit) {
  const auto ratio = static_cast<std::uint64_t>(1.0 + std::max(0.0, value) / unit);
  return std::min(kScales - 1, static_cast<int>(std::bit_width(ratio)) - 1);
}

// The last use of a prefix.
struct PrefixUse {
  std::int32_t uses = 1;    // of the prefix, this one included
  Position answer = 0;      // tokens of the request's answer
  Position new_tokens = 0;  // tokens of the request's prompt that were never seen before
};

// Returns the class of a prefix after this use.
constexpr int UseClassOf(const PrefixUse& use) {
  const int family = std::clamp(use.uses, 1, kUseFamilies) - 1;
  return family * kScales +
         (use.uses <= 1 ? ScaleOf(use.answer, 8.0) : ScaleOf(use.new_tokens, 128.0));
}

}  // namespace kvcache::prefix
