// The regular expressions of JSON schemas (ECMA-262 with the flag u) as a tree.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "grammar/text/code_point_set.h"
#include "kvcache/status.h"

namespace kvcache {

enum class PatternKind : std::uint8_t {
  kSequence,      // of `children`; none: the empty text
  kAlternatives,  // `children`
  kSet,           // one character of `set`
  kRepeat,        // the child, `min` to `max` times
  kBegin,         // ^
  kEnd,           // $
  kBoundary,      // \b
  kNoBoundary,    // \B
  kLookahead,     // (?=child)
  kNoLookahead,   // (?!child)
};

// What matches nothing but the empty text by itself, such as "(?:){9}", is no part of a sequence, so the steps of a
// program are a measure of the time that it takes to write the tree out.
struct PatternTree {
  static constexpr std::int64_t kEndless = -1;
  // A tree with more makes too large a program.
  static constexpr std::size_t kMaxNodes = 300'000;
  // Of the classes of a pattern, as they are written.
  static constexpr std::size_t kMaxRanges = 100'000;
  struct Node {
    PatternKind kind = PatternKind::kSequence;
    std::int32_t set = 0;
    std::int64_t min = 0;
    std::int64_t max = 0;
    std::vector<std::int32_t> children{};
  };
  std::vector<Node> nodes{};
  std::vector<CodePointSet> sets{};
  std::map<CodePointSet, std::int32_t> set_ids{};
  std::int32_t root = 0;

  std::int32_t AddNode(Node node);
  // Adds a set once.
  std::int32_t AddSet(const CodePointSet& set);
};

// Also takes what the flag u refuses and Python writes: any punctuation behind a backslash, and '}' and ']' as
// they are. Errors: kInvalidArgument with what is wrong or not supported, and where.
Result<PatternTree> ParsePattern(std::string_view pattern);

// Returns the tree of whole texts, one of which a text must be.
PatternTree TreeOfTexts(const std::vector<std::string_view>& texts);

}  // namespace kvcache
