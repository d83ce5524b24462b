// Questions to blocks of logits, in loops that compilers vectorise.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <span>

namespace kvcache {

inline constexpr std::size_t kLogitBlock = 64;

// Returns whether one of the values fulfils `holds`. Looks at all of them.
template <class Predicate>
bool AnyOfBlock(std::span<const float, kLogitBlock> values, Predicate holds) {
  int any = 0;
  for (std::size_t i = 0; i < kLogitBlock; ++i) any |= holds(values[i]) ? 1 : 0;
  return any != 0;
}

// Calls f(begin, end) for the blocks of `values` with a value that fulfils `holds`, and for the values
// behind the last whole block, in order. f may change what `holds` answers.
template <class Predicate, class F>
void ForBlocksWith(std::span<const float> values, Predicate holds, F&& f) {
  std::size_t at = 0;
  for (; at + kLogitBlock <= values.size(); at += kLogitBlock) {
    if (AnyOfBlock(values.subspan(at).first<kLogitBlock>(), holds)) f(at, at + kLogitBlock);
  }
  if (at < values.size()) f(at, values.size());
}

}  // namespace kvcache
