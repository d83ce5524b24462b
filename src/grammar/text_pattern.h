// Turns a regular expression into the grammar of JSON texts that it matches.
//
// It knows characters, ".", classes with ranges, \d \w \s and their opposites in no class, groups, |, *, +, ?,
// {m,n}, and ^ and $ at the ends of the expression. Without ^ or $ anything may stand there. Matched texts have
// no control characters, and \s is a space.
//
// Thread safety: pure functions.
#pragma once

#include <string_view>

#include "grammar/json_grammar.h"

namespace kvcache {

// Returns the text with its quotation marks. Errors: kInvalidArgument: what is not known, and where.
Result<GrammarSequence> TextPattern(std::string_view pattern, GrammarBuilder& builder,
                                    JsonGrammar& json);

}  // namespace kvcache
