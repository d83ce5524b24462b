// Splits a template's source into tokens, with Jinja's rules for white space: a newline after a tag
// is removed (trim_blocks), and so are blanks before a tag that begins a line (lstrip_blocks). "-"
// at a tag's edge removes all white space there, "+" keeps it. One newline at the end is removed.
//
// Thread safety: a free function.
// Source: Jinja 3.1's documentation, "Whitespace Control"; the settings are those with which
// Hugging Face's transformers renders chat templates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::jinja {

struct Place {
  std::uint32_t line = 1;
  std::uint32_t column = 1;  // in bytes, from 1
};

// Returns "line 3, column 14".
std::string PlaceText(Place place);

enum class TokenType : std::uint8_t {
  kData,        // text outside of tags
  kTagBegin,    // {%
  kTagEnd,      // %}
  kPrintBegin,  // {{
  kPrintEnd,    // }}
  kName,
  kText,  // a string, escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;
  Place place;
};

// Returns the tokens, kEnd last. Errors: kCorrupt: a syntax error, with line and column.
Result<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace kvcache::jinja
