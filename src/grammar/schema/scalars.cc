#include "grammar/schema/scalars.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "grammar/text/text_formats.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

// Collects what texts must match, and must not.
class TextParts {
 public:
  TextParts(const std::string& place, PatternPrograms& programs)
      : place_(place), programs_(programs) {}

  Status Add(const Json& schema, bool negated) {
    if (schema.contains("pattern")) {
      const auto pattern = schema["pattern"].get<std::string>();
      auto program = programs_.Pattern(pattern);
      if (!program.ok()) return Fail("pattern", pattern, program.status());
      parts_.push_back({*std::move(program), negated});
    }
    if (schema.contains("format")) {
      const auto format = schema["format"].get<std::string>();
      auto program = programs_.Format(format);
      if (!program.ok()) return Fail("format", format, program.status());
      if (*program == nullptr && negated) {
        return SchemaError(place_, StrCat("refuses the format ", Quoted(format),
                                          ", which this server does not enforce"));
      }
      if (*program != nullptr) parts_.push_back({*std::move(program), negated});
    }
    if (negated && schema.contains("enum")) return AddOthers(schema["enum"]);
    return Status::Ok();
  }
  std::vector<TextLanguage::Part> Take() { return std::move(parts_); }

 private:
  Status Fail(const char* keyword, const std::string& value, const Status& status) const {
    return SchemaError(
        place_, StrCat("has a ", Quoted(keyword), " ", Quoted(value), " that ", status.message()));
  }
  Status AddOthers(const Json& constants) {
    std::vector<std::string_view> texts;
    for (const Json& one : constants) {
      if (one.is_string()) texts.push_back(one.get_ref<const std::string&>());
    }
    if (texts.empty()) return Status::Ok();
    auto program = programs_.Texts(texts);
    if (!program.ok()) {
      return SchemaError(place_, StrCat("refuses texts that ", program.status().message()));
    }
    parts_.push_back({*std::move(program), /*negated=*/true});
    return Status::Ok();
  }

  const std::string& place_;
  PatternPrograms& programs_;
  std::vector<TextLanguage::Part> parts_;
};

constexpr std::size_t kRangesOfNode = 4;  // that take as much memory

}  // namespace

Result<PatternPrograms::Program> PatternPrograms::Compiled(const PatternTree& tree) {
  KVCACHE_ASSIGN_OR_RETURN(PatternProgram program, CompilePattern(tree));
  nodes_ += 1 + program.nodes.size();
  for (const CodePointSet& set : program.sets) nodes_ += set.ranges().size() / kRangesOfNode;
  if (nodes_ > GrammarBuilder::kMaxSymbols) {
    return InvalidArgument(StrCat("makes more than ", GrammarBuilder::kMaxSymbols,
                                  " steps together with the other patterns"));
  }
  return Program(std::make_shared<const PatternProgram>(std::move(program)));
}

Result<PatternPrograms::Program> PatternPrograms::Pattern(const std::string& pattern) {
  Program& program = programs_[pattern];
  if (program == nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(const PatternTree tree, ParsePattern(pattern));
    KVCACHE_ASSIGN_OR_RETURN(program, Compiled(tree));
  }
  return program;
}

Result<PatternPrograms::Program> PatternPrograms::Format(const std::string& format) {
  const std::string* const pattern = PatternOfFormat(format);
  if (pattern == nullptr) return Program();
  Program& program = formats_[format];
  if (program == nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(const PatternTree tree, ParsePattern(*pattern));
    KVCACHE_ASSIGN_OR_RETURN(PatternProgram made, CompilePattern(tree));
    program = std::make_shared<const PatternProgram>(std::move(made));
  }
  return program;
}

Result<PatternPrograms::Program> PatternPrograms::Texts(
    const std::vector<std::string_view>& texts) {
  std::size_t bytes = 0;
  for (const std::string_view text : texts) bytes += text.size();
  // A character has up to four bytes.
  if (bytes / 4 + texts.size() > GrammarBuilder::kMaxSymbols) {
    return InvalidArgument(
        StrCat("have more than ", GrammarBuilder::kMaxSymbols, " characters together"));
  }
  return Compiled(TreeOfTexts(texts));
}

Result<bool> PatternPrograms::Matches(const std::string& pattern, const std::string& text) {
  auto& language = languages_[pattern];
  if (language == nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(Program program, Pattern(pattern));
    const TextLanguage::Part part{std::move(program)};
    language = std::make_unique<const TextLanguage>(std::vector{part}, TextLengths());
  }
  return Has(*language, text);
}

Result<bool> PatternPrograms::Has(const TextLanguage& language, const std::string& text) {
  work_ += 10 + text.size();
  if (work_ <= kMaxWork) {
    const auto has = language.Has(text, work_);
    if (has && work_ <= kMaxWork) return *has;
  }
  return InvalidArgument(StrCat("takes more than ", kMaxWork,
                                " steps to compare with names or constants, together with others"));
}

Result<std::shared_ptr<const TextLanguage>> TextsOf(const SchemaParts& parts,
                                                    const std::string& place,
                                                    PatternPrograms& programs) {
  KVCACHE_ASSIGN_OR_RETURN(const auto min, CountOf(parts, "minLength", place));
  KVCACHE_ASSIGN_OR_RETURN(const auto max, CountOf(parts, "maxLength", place));
  TextParts texts(place, programs);
  for (const SchemaPart& part : parts) {
    KVCACHE_RETURN_IF_ERROR(texts.Add(*part.schema, /*negated=*/false));
  }
  for (const Json* const refused : SimpleNotsOf(parts)) {
    KVCACHE_RETURN_IF_ERROR(texts.Add(*refused, /*negated=*/true));
  }
  return std::make_shared<const TextLanguage>(texts.Take(),
                                              TextLengths{min.value_or(0), max.value_or(-1)});
}

Result<NumberRange> NumbersOf(const SchemaParts& parts, bool whole, const std::string& place) {
  NumberRange range;
  for (const SchemaPart& part : parts) {
    for (const auto& [keyword, value] : part.schema->items()) {
      if (keyword == "minimum" || keyword == "exclusiveMinimum") {
        range.AtLeast({DecimalOf(value), keyword[0] == 'e'});
      } else if (keyword == "maximum" || keyword == "exclusiveMaximum") {
        range.AtMost({DecimalOf(value), keyword[0] == 'e'});
      }
    }
  }
  if (whole) range.unit = DecimalUnit{};
  for (const Json* const refused : SimpleNotsOf(parts)) {
    range.fractions_only = range.fractions_only || refused->contains("type");
  }
  for (const Json* const multiple : EachOf(parts, "multipleOf")) {
    const auto unit = UnitOf(DecimalOf(*multiple));
    if (!unit) {
      return SchemaError(place, StrCat("has the 'multipleOf' ", multiple->dump(),
                                       ", which leaves more than 10,000 remainders"));
    }
    const auto common = range.unit ? CommonMultiple(*range.unit, *unit) : unit;
    if (!common) {
      return SchemaError(place, StrCat("has the 'multipleOf' ", multiple->dump(),
                                       ", which leaves more than 10,000 remainders beside others"));
    }
    range.unit = common;
  }
  if (range.fractions_only && range.unit) {
    return SchemaError(place,
                       "refuses whole numbers beside 'multipleOf', which this server cannot "
                       "enforce together");
  }
  return range;
}

}  // namespace kvcache
