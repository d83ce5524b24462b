// The texts and numbers that JSON schemas allow, as grammar.
//
// Thread safety: one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/number_range.h"
#include "grammar/schema/parts.h"
#include "grammar/text/text_language.h"

namespace kvcache {

// Makes programs of patterns and formats, once each, and tells whether texts match.
class PatternPrograms {
 public:
  using Program = std::shared_ptr<const PatternProgram>;
  // The most work that it may take to compare names and constants with patterns, all together.
  static constexpr std::size_t kMaxWork = 10'000'000;

  // Errors: kInvalidArgument with what is wrong with the pattern.
  Result<Program> Pattern(const std::string& pattern);
  // Returns null for a format that refuses nothing.
  Result<Program> Format(const std::string& format);
  // Returns the program of some texts.
  Result<Program> Texts(const std::vector<std::string_view>& texts);
  // Returns whether a pattern matches in a text, or a language has it. Errors: kInvalidArgument, too, if that takes too
  // much work.
  Result<bool> Matches(const std::string& pattern, const std::string& text);
  Result<bool> Has(const TextLanguage& language, const std::string& text);

 private:
  // Compiles what a request gives. Errors: kInvalidArgument if all programs together have too many nodes.
  Result<Program> Compiled(const PatternTree& tree);

  std::map<std::string, Program> programs_;
  std::map<std::string, Program> formats_;
  std::map<std::string, std::unique_ptr<const TextLanguage>> languages_;  // by pattern
  std::size_t nodes_ = 0;
  std::size_t work_ = 0;
};

// Reads the texts that all parts allow.
Result<std::shared_ptr<const TextLanguage>> TextsOf(const SchemaParts& parts,
                                                    const std::string& place,
                                                    PatternPrograms& programs);
// Reads the numbers that all parts allow. `whole`: integers only.
Result<NumberRange> NumbersOf(const SchemaParts& parts, bool whole, const std::string& place);

}  // namespace kvcache
