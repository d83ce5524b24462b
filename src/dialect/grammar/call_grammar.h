// The grammar of calls in a dialect: what an answer may be that calls tools, and only tools that are offered, with
// arguments that their schemas allow.
//
// Where a dialect writes strings without quotation marks, their lengths and patterns are not enforced, only lists of
// values are. In braces, the items of arrays and objects are not.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "dialect/dialect.h"
#include "grammar/grammar.h"
#include "kvcache/status.h"

namespace kvcache {

// The calls that an answer must be, or may have.
struct CallRule {
  // [{"function": {"name", "parameters"}}]: those that may be called.
  nlohmann::ordered_json tools = nlohmann::ordered_json::array();
  bool one = false;     // at most one call
  bool forced = false;  // nothing but calls; else any text may come first
  bool loose = false;   // a schema that cannot be enforced allows any object
};

// Adds the answers that a rule allows. Calls without markers that are not forced begin the answer: one that begins with
// a bracket as calls do has to go on as one. Errors: those of AddJsonSchema.
Result<GrammarSymbol> AddCalls(const CallRule& rule, const Dialect& dialect,
                               GrammarBuilder& builder);

// Adds the texts that end with the first `end` in them, and go on with `rest`. `may_stop`: the text may also end before.
GrammarSymbol TextUpTo(std::string_view end, const GrammarSequence& rest, bool may_stop,
                       GrammarBuilder& builder);

}  // namespace kvcache
