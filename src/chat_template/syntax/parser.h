// Parses tokens to statements: Jinja's grammar without template inheritance, includes and
// translations, which chat templates cannot have.
//
// Errors name the construct with line and column: kCorrupt for a syntax error, kUnsupported for
// Jinja that this interpreter does not support.
//
// Thread safety: free functions.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template/syntax/syntax.h"
#include "kvcache/status.h"

namespace kvcache::jinja {

inline constexpr int kMaxSyntaxDepth = 100;  // expressions in expressions, tags in tags
inline constexpr std::size_t kMaxSourceBytes = std::size_t{1} << 20;

struct ParsedTemplate {
  Body body;
  std::set<std::string, std::less<>> names;  // the variables that the template reads
  Symbols symbols;                           // all variables
  std::vector<std::string> literals;         // the texts that it may write (literals.h)
};

Result<ParsedTemplate> ParseTemplate(std::string_view source);

}  // namespace kvcache::jinja
