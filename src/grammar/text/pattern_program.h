// A regular expression as a graph of steps: an automaton that may be at several places.
//
// Thread safety: a program is a constant.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/text/pattern_syntax.h"

namespace kvcache {

struct PatternProgram {
  enum class Step : std::uint8_t {
    kSet,    // one character of `set`
    kFork,   // continues at `next` and at `other`
    kBegin,  // the assertions, as PatternKind
    kEnd,
    kBoundary,
    kNoBoundary,
    kLook,    // what begins at `other` must match from here on, too
    kNoLook,  // it must not
    kAccept,  // anything may follow
  };
  struct Node {
    Step step = Step::kAccept;
    std::int32_t next = 0;
    std::int32_t other = 0;
    std::int32_t set = 0;
  };
  static constexpr std::size_t kMaxNodes = 150'000;
  static constexpr std::int32_t kNever = 1'000'000'000;

  std::vector<Node> nodes{};
  std::vector<CodePointSet> sets{};
  std::int32_t start = 0;
  std::vector<std::int32_t>
      distance{};  // [node]: characters up to the end, at least; kNever: no way
  bool has_looks = false;
  bool has_boundaries = false;
  // Places may not lead to the end, as behind "a$b": the graph alone does not tell.
  bool may_be_stuck = false;
};

// Returns the program of texts in which the expression matches somewhere. Errors: kInvalidArgument if it has too
// many nodes.
Result<PatternProgram> CompilePattern(const PatternTree& tree);

}  // namespace kvcache
