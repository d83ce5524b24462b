#include "server/request/asked_form.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "json/json_text.h"

namespace kvcache::server {
namespace {

// Takes a form that was made for a field; the error, if there is one, is the field's.
AnswerForm Take(Fields& fields, const std::string& name, Result<AnswerForm> form) {
  if (form.ok()) return std::move(*form);
  fields.Fail(name, "is refused: " + form.status().message());
  return nullptr;
}

// Refuses a value of another kind than the field's.
AnswerForm Refuse(Fields& fields, const std::string& name, const char* rule) {
  fields.Fail(name, rule);
  return nullptr;
}

// Reads a schema, or the text of one.
AnswerForm ReadSchema(Fields& fields, const char* name, const Json& given) {
  Json schema = given;
  if (given.is_string()) {
    auto parsed = ParseJson(given.get_ref<const std::string&>());
    if (parsed.ok()) schema = std::move(*parsed);
  }
  if (!schema.is_object()) return Refuse(fields, name, "must be a JSON schema");
  return Take(fields, name, SchemaForm(schema));
}

// Reads the texts of which the answer is one.
AnswerForm ReadChoices(Fields& fields, const char* name, const Json& given) {
  if (!given.is_array() || given.empty()) {
    return Refuse(fields, name, "must be an array of strings, none of them empty");
  }
  const std::vector<std::string> choices = fields.Texts(name, 10'000);
  return fields.ok() ? Take(fields, name, ChoiceForm(choices)) : nullptr;
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
  if (!inner.ok()) return Refuse(fields, "structured_outputs", "must be an object");
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

// Reads {"type": "json_schema", …} with the schema at `schema`, "json_object" with or without one, or "text".
AnswerForm ReadTyped(Fields& fields, const std::string& name, const Json& format,
                     const Json& schema) {
  const Json type = format.value("type", Json());
  if (type == "text") return nullptr;
  if (type == "json_object" && schema.is_null()) return JsonObjectForm();
  if (type != "json_schema" && type != "json_object") {
    return Refuse(fields, name,
                  "must have the 'type' \"text\", \"json_object\" or \"json_schema\"");
  }
  if (!schema.is_object()) return Refuse(fields, name, "has no 'schema' that is an object");
  return Take(fields, name, SchemaForm(schema));
}

// Reads OpenAI's response_format.
AnswerForm ReadResponseFormat(Fields& fields, const Json& format) {
  if (!format.is_object()) return Refuse(fields, "response_format", "must be an object");
  // Some servers' clients write the schema beside the type.
  Json inner = format.value("json_schema", Json());
  if (inner.is_null()) inner = format;
  return ReadTyped(fields, "response_format", format,
                   inner.is_object() ? inner.value("schema", Json()) : Json());
}

// Reads Ollama's format.
AnswerForm ReadOllamaFormat(Fields& fields, const Json& format) {
  if (format == Json("")) return nullptr;
  if (format == "json") return JsonObjectForm();
  if (!format.is_object()) return Refuse(fields, "format", "must be \"json\" or a JSON schema");
  return Take(fields, "format", SchemaForm(format));
}

// Reads a format that has its schema beside its type; null: any text.
AnswerForm ReadFlat(Fields& fields, const std::string& name, const Json& format) {
  if (format.is_null()) return nullptr;
  if (!format.is_object()) return Refuse(fields, name, "must be an object");
  return ReadTyped(fields, name, format, format.value("schema", Json()));
}

// Reads Anthropic's output_config.format, else its output_format.
AnswerForm ReadOutputFormat(Fields& fields) {
  const Json* const config = fields.Find("output_config");
  if (config != nullptr && !config->is_object()) {
    return Refuse(fields, "output_config", "must be an object");
  }
  const Json format = config != nullptr ? config->value("format", Json()) : Json();
  if (!format.is_null()) return ReadFlat(fields, "output_config", format);
  const Json* const old = fields.Find("output_format");
  return old != nullptr ? ReadFlat(fields, "output_format", *old) : nullptr;
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
  read("response_format", [&](const Json& given) { return ReadResponseFormat(fields, given); });
  read("format", [&](const Json& given) { return ReadOllamaFormat(fields, given); });
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
  if (text != nullptr && text->is_object()) {
    add("text.format", ReadFlat(fields, "text.format", text->value("format", Json())));
  }
  return form;
}

}  // namespace kvcache::server
