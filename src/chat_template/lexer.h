// A template's source as tokens, with Jinja's rules for white space: a newline after a tag is
// swallowed (trim_blocks), blanks before a tag that begins a line too (lstrip_blocks), "-" at a
// tag's edge takes all white space there, "+" keeps it, one newline at the end is dropped.
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
  std::uint32_t column = 1;  // bytes from the line's begin, from 1
};

// "line 3, column 14".
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

// The tokens, kEnd last. Errors: kCorrupt with line and column.
Result<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace kvcache::jinja
