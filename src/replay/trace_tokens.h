// Makes the tokens of a trace's requests: equal blocks have equal tokens, others differ at their
// beginning.
//
// The first tokens of a block are the digits of its number in the base of the vocabulary, the lowest
// first. The other tokens follow from the number. Answers have numbers of their own, which no other
// answer and no prompt has.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <vector>

#include "replay/trace.h"

namespace kvcache {

class TraceTokens {
 public:
  // A vocabulary that tells any two blocks of a trace apart by one token.
  static constexpr std::int32_t kLargestVocabulary = 0x7fffffff;

  // REQUIRES: vocabulary >= 4. `trace` must outlive it.
  TraceTokens(const Trace& trace, std::int32_t vocabulary);

  // Appends the tokens of the prompt, and of the answer, of the trace's request i.
  void AppendPrompt(std::size_t i, std::vector<std::int32_t>& tokens) const;
  void AppendAnswer(std::size_t i, std::vector<std::int32_t>& tokens) const;

  // Returns the number of tokens after which any two blocks differ.
  int digits() const { return digits_; }

 private:
  void Append(std::uint64_t number, Position count, std::vector<std::int32_t>& tokens) const;

  const Trace& trace_;
  std::uint64_t base_;
  int digits_ = 1;
};

}  // namespace kvcache
