// Checks that foreign text never becomes a marker of a dialect.
//
// For each dialect, a template writes all of its markers around names, arguments, contents and thoughts, and the
// markers are special tokens of the vocabulary. Each marker is then put into each place that holds foreign text.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "dialect/dialect.h"
#include "dialect/history_form.h"
#include "structure_compare.h"

namespace kvcache::structure_test {
namespace {

// Returns an expression of a template that writes a text.
std::string Literal(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c == '\n' ? "\\n" : std::string(1, c);
  }
  return text.empty() ? "" : "{{ '" + out + "' }}";
}

// Writes arguments as JSON, and once more between the dialect's markers of parameters.
std::string ArgumentsOf(const CallSyntax& calls) {
  return "{{ f.arguments if f.arguments is string else f.arguments | tojson }}"
         "{% if f.arguments is mapping %}{% for k, v in f.arguments | items %}" +
         Literal(calls.quote) + "{{ v }}" + Literal(calls.quote) + Literal(calls.parameter_begin) +
         "{{ k }}" + Literal(calls.parameter_name_end) + Literal(calls.value_begin) +
         "{{ v if v is string else v | tojson }}" + Literal(calls.parameter_end) +
         "{% endfor %}{% endif %}";
}

std::string TemplateOf(const Dialect& dialect) {
  const CallSyntax& calls = dialect.calls;
  const auto text = [&](const std::string& key) {
    return "{% if m." + key + " %}{{ m." + key + " }}{% endif %}";
  };
  return "{{ functions or '' }}{%- for t in tools or [] %}{{ t | tojson }}{{ "
         "t.function.description }}{% endfor %}"
         "{%- for m in messages %}" +
         Literal("<s>") + "{{ m.role }}{{ m.tools or '' if m.role == 'system' }}" +
         Literal(dialect.thoughts.begin) + text("reasoning_content") +
         Literal(dialect.thoughts.end) + Literal(dialect.text_begin) +
         "{% if m.content is string %}" + text("content") +
         "{% else %}{% for p in m.content or [] %}{{ p.text or p }}{% endfor %}{% endif %}" +
         Literal(dialect.text_end) + text("name") + text("tool_call_id") + "{% if m.tool_calls %}" +
         Literal(calls.section_begin) + "{% for c in m.tool_calls %}{% set f = c.function %}" +
         Literal(calls.call_begin) + "{{ f.name }}" + Literal(calls.id_begin) + "{{ c.id or '' }}" +
         Literal(calls.name_end) + ArgumentsOf(calls) + Literal(calls.call_end) + "{% endfor %}" +
         Literal(calls.section_end) + "{% endif %}" + Literal("</s>") + "{% endfor %}";
}

// Returns the markers of a dialect, and the ends of sequences.
std::vector<std::string> MarkersOf(const Dialect& dialect) {
  const CallSyntax& calls = dialect.calls;
  std::vector<std::string> markers = {"<s>", "</s>"};
  for (const std::string& marker :
       {dialect.thoughts.begin, dialect.thoughts.end, dialect.text_begin, dialect.text_end,
        calls.section_begin, calls.section_end, calls.call_begin, calls.call_end, calls.name_end,
        calls.id_begin, calls.parameter_begin, calls.parameter_name_end, calls.value_begin,
        calls.parameter_end, calls.quote}) {
    // A single character is text in every vocabulary.
    if (marker.size() > 1) markers.push_back(marker);
  }
  return markers;
}

// Returns conversations whose tools and thoughts come to the template as some templates want them.
std::vector<Talk> AdaptedTalks() {
  std::vector<Talk> talks;
  for (const Talk& talk : Talks()) {
    talks.push_back(talk);
    for (const ToolForm tools :
         {ToolForm::kFunctions, ToolForm::kSystemText, ToolForm::kSystemList, ToolForm::kText}) {
      const auto make = [talk, tools](const Text& text) {
        const HistoryForm form{.tools = tools, .text_arguments = true};
        ChatInput input = talk.make(text);
        Adapt(form, input.messages);
        OfferTools(form, input);
        return input;
      };
      if (!make([](int) { return std::string("q"); }).tools.is_null()) {
        talks.push_back({talk.name, make});
      }
    }
  }
  return talks;
}

TEST(StructureOfDialects, ForeignTextNeverBecomesAMarker) {
  Totals totals;
  for (const Dialect& dialect : Dialects()) {
    if (!dialect.has_calls()) continue;
    const std::vector<std::string> markers = MarkersOf(dialect);
    const std::string source = TemplateOf(dialect);
    const auto parsed = ChatTemplate::Parse(source);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message() << "\n" << source;
    const std::vector<Named> tokenizers = TokenizersOf(markers);
    Family family{.name = dialect.name, .tokenizers = &tokenizers};
    for (const Named& named : tokenizers) {
      auto format = ChatFormat::FromSource(source, dialect.name, *named.tokenizer);
      ASSERT_TRUE(format.ok()) << format.status().message();
      family.formats.push_back(std::move(*format));
      family.counted.push_back(Counted(*named.tokenizer, parsed->literals()));
    }
    const int before = totals.prompts;
    for (const Talk& talk : AdaptedTalks()) {
      for (const std::string& marker : markers) CompareEverywhere(family, talk, marker, &totals);
    }
    EXPECT_GT(totals.prompts, before + 100) << dialect.name;
  }
  // No template of this test looks into texts.
  EXPECT_EQ(totals.other_branch, 0);
}

}  // namespace
}  // namespace kvcache::structure_test
