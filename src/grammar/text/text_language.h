// The contents of JSON texts that patterns, lengths and constants allow.
//
// Characters may be written in any way that JSON has: as UTF-8, by a short escape, as \uXXXX.
//
// Thread safety: a language is a constant; a reader is used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/byte_language.h"
#include "grammar/text/pattern_matcher.h"
#include "kvcache/status.h"

namespace kvcache {

// Characters of a text.
struct TextLengths {
  std::int64_t min = 0;
  std::int64_t max = -1;  // any number
};

class TextLanguage final : public ByteLanguage {
 public:
  struct Part {
    std::shared_ptr<const PatternProgram> program{};
    bool negated = false;  // texts in which it does not match
  };

  TextLanguage(std::vector<Part> parts, TextLengths lengths);

  std::unique_ptr<ByteReader> Reader() const override;
  // Returns whether a text belongs to the language; none: it takes too much work to tell. A text is bytes of UTF-8 as
  // they are, not as JSON. Adds the work to `work`.
  std::optional<bool> Has(std::string_view text, std::size_t& work) const;

  const std::vector<Part>& parts() const { return parts_; }
  TextLengths lengths() const { return lengths_; }
  const CharacterClasses& classes() const { return classes_; }

 private:
  std::vector<Part> parts_;
  TextLengths lengths_;
  CharacterClasses classes_;
};

}  // namespace kvcache
