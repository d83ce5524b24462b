// Sets of Unicode code points, as ranges.
//
// Thread safety: values.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kvcache {

inline constexpr std::uint32_t kLastCodePoint = 0x10FFFF;

struct CodePointRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;  // in the range
  friend bool operator==(const CodePointRange&, const CodePointRange&) = default;
  friend auto operator<=>(const CodePointRange&, const CodePointRange&) = default;
};

class CodePointSet {
 public:
  CodePointSet() = default;
  static CodePointSet Of(std::uint32_t first, std::uint32_t last);
  static CodePointSet Of(std::uint32_t point) { return Of(point, point); }
  static CodePointSet All() { return Of(0, kLastCodePoint); }
  // Returns the set of ranges in any order, which may have common points.
  static CodePointSet OfRanges(std::vector<CodePointRange> ranges);

  // Add a range, or all of a set.
  void Add(std::uint32_t first, std::uint32_t last);
  void Add(const CodePointSet& other);
  // Removes the points that both sets have, and adds those that only the other has.
  void Toggle(const CodePointSet& other);
  // Adds a range behind all others. REQUIRES: a gap before it.
  void Append(std::uint32_t first, std::uint32_t last) { ranges_.push_back({first, last}); }
  // Returns the code points that are not in the set.
  CodePointSet Complement() const;
  bool Has(std::uint32_t point) const;
  bool empty() const { return ranges_.empty(); }
  // Ascending, without common or adjacent points.
  const std::vector<CodePointRange>& ranges() const { return ranges_; }
  friend bool operator==(const CodePointSet&, const CodePointSet&) = default;
  friend auto operator<=>(const CodePointSet&, const CodePointSet&) = default;

 private:
  std::vector<CodePointRange> ranges_;
};

// ECMA-262's \d, \w, \s, and what "." does not match.
CodePointSet DecimalDigits();
CodePointSet WordCharacters();
CodePointSet WhiteSpace();
CodePointSet LineTerminators();

// Reads UTF-8 from `at` on and moves it behind the code point. A byte that begins no valid one reads as U+FFFD.
std::uint32_t ReadCodePoint(std::string_view text, std::size_t& at);
std::vector<std::uint32_t> CodePointsOf(std::string_view text);

}  // namespace kvcache
