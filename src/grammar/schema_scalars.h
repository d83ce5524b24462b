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
#include "grammar/schema_parts.h"
#include "grammar/text_language.h"

namespace kvcache {

// Makes programs of patterns and formats, once each.
class PatternPrograms {
 public:
  using Program = std::shared_ptr<const PatternProgram>;
  // Errors: kInvalidArgument with what is wrong with the pattern.
  Result<Program> Pattern(const std::string& pattern);
  // Returns null for a format that refuses nothing.
  Result<Program> Format(const std::string& format);
  // Returns the program of some texts.
  static Result<Program> Texts(const std::vector<std::string_view>& texts);

 private:
  std::map<std::string, Program> programs_;
};

// Reads the texts that all parts allow.
Result<std::shared_ptr<const TextLanguage>> TextsOf(const SchemaParts& parts,
                                                    const std::string& place,
                                                    PatternPrograms& programs);
// Reads the numbers that all parts allow. `whole`: integers only.
Result<NumberRange> NumbersOf(const SchemaParts& parts, bool whole, const std::string& place);

}  // namespace kvcache
