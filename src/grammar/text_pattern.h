// Turns a regular expression into the grammar of JSON texts that it matches.
//
// It knows characters, ".", classes with ranges, \d \w \s and their opposites in no class, groups, |, *, +, ?,
// {m,n}, and ^ and $ at the ends of the expression. Without ^ or $ anything may stand there. Matched texts have
// no control characters, and \s is a space.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "grammar/json_grammar.h"

namespace kvcache {

// Characters of a text.
struct TextLengths {
  std::int64_t least = 0;
  std::int64_t most = -1;  // any number
};

// Returns the text with its quotation marks. Lengths are enforced where they follow from the pattern, or the
// pattern is one character that is repeated: ^[a-z]+$. Errors: kInvalidArgument: what is not known, and where.
Result<GrammarSequence> TextPattern(std::string_view pattern, TextLengths lengths,
                                    GrammarBuilder& builder, JsonGrammar& json);

}  // namespace kvcache
