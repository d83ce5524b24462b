#include "server/request/asked_form.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "engine/chat/json_text.h"

namespace kvcache::server {
namespace {

// Reads a schema, or the text of one.
AnswerForm ReadSchema(Fields& fields, const char* name, const Json& given) {
  Json schema = given;
  if (given.is_string()) {
    auto parsed = ParseJson(given.get_ref<const std::string&>());
    if (parsed.ok()) schema = std::move(*parsed);
  }
  if (!schema.is_object()) {
    fields.Fail(name, "must be a JSON schema");
    return nullptr;
  }
  auto form = SchemaForm(schema);
  if (form.ok()) return std::move(*form);
  fields.Fail(name, "is refused: " + form.status().message());
  return nullptr;
}

// Reads the texts of which the answer is one.
AnswerForm ReadChoices(Fields& fields, const char* name, const Json& given) {
  if (!given.is_array() || given.empty()) {
    fields.Fail(name, "must be an array of strings, none of them empty");
    return nullptr;
  }
  const std::vector<std::string> choices = fields.Texts(name, 10'000);
  if (!fields.ok()) return nullptr;
  auto form = ChoiceForm(choices);
  if (form.ok()) return std::move(*form);
  fields.Fail(name, "is refused: " + form.status().message());
  return nullptr;
}

// Returns whether an object has nothing but values that say nothing: clients send all fields that they know.
bool SaysNothing(const Json& object) {
  return object.is_object() && std::all_of(object.begin(), object.end(), [](const Json& value) {
           return value.is_null() || value == false;
         });
}

// Reads vLLM's {"json": …}, {"choice": […]}, {"json_object": true}. Its other kinds are refused.
AnswerForm ReadStructured(Fields& fields, const Json& given) {
  // A boolean of other servers says that response_format is strict, which it always is.
  if (given.is_boolean() || SaysNothing(given)) return nullptr;
  Fields inner(given, "structured_outputs.");
  if (!inner.ok()) {
    fields.Fail("structured_outputs", "must be an object");
    return nullptr;
  }
  for (const char* const name : {"regex", "grammar", "structural_tag", "whitespace_pattern"}) {
    inner.Refuse(name, "");
  }
  AnswerForm form;
  int kinds = 0;
  if (const Json* const schema = inner.Find("json"); schema != nullptr) {
    form = ReadSchema(inner, "json", *schema);
    ++kinds;
  }
  if (const Json* const choices = inner.Find("choice"); choices != nullptr) {
    form = ReadChoices(inner, "choice", *choices);
    ++kinds;
  }
  if (inner.Bool("json_object", false)) {
    form = JsonObjectForm();
    ++kinds;
  }
  fields.Adopt(inner);
  if (kinds != 1)
    fields.Fail("structured_outputs", "must have one of 'json', 'choice', 'json_object'");
  return form;
}

// Grammars and regular expressions, which this server does not know, and what changes the form of JSON.
void RefuseOtherForms(Fields& fields) {
  for (const char* const name :
       {"grammar", "grammar_string", "guided_grammar", "guided_regex", "regex", "ebnf",
        "structural_tag", "guided_structural_tag", "guided_whitespace_pattern"}) {
    fields.Refuse(name, "");
  }
}

}  // namespace

AnswerForm ReadAskedForm(Fields& fields) {
  RefuseOtherForms(fields);
  AnswerForm form;
  const char* first = nullptr;
  const auto add = [&](const char* name, AnswerForm other) {
    if (other == nullptr) return;
    if (first != nullptr) {
      fields.Fail(name, StrCat("and '", first, "' each give the answer a form; there can be one"));
    }
    first = name;
    form = std::move(other);
  };
  const auto read = [&](const char* name, auto reader) {
    if (const Json* const given = fields.Find(name); given != nullptr) add(name, reader(*given));
  };
  read("response_format", [&](const Json&) { return ReadResponseFormat(fields); });
  read("format", [&](const Json&) { return ReadOllamaFormat(fields); });
  const char* const output = fields.Has("output_format") ? "output_format" : "output_config";
  read(output, [&](const Json&) { return ReadOutputFormat(fields); });
  for (const char* const name : {"json_schema", "guided_json"}) {
    read(name, [&](const Json& given) { return ReadSchema(fields, name, given); });
  }
  read("guided_choice",
       [&](const Json& given) { return ReadChoices(fields, "guided_choice", given); });
  read("structured_outputs", [&](const Json& given) { return ReadStructured(fields, given); });
  // Other APIs may have a text of this name.
  const Json* const text = fields.Find("text");
  if (text != nullptr && text->is_object()) add("text.format", ReadTextFormat(fields));
  return form;
}

}  // namespace kvcache::server
