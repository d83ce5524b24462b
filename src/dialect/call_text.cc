#include "dialect/call_text.h"

#include <nlohmann/json.hpp>

#include "base/strings.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

// Bytes that are no text become U+FFFD.
std::string Compact(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Python writes these values as JSON does, but for three words.
std::string PythonValue(const Json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (!value.is_structured()) return Compact(value);
  std::string text;
  for (const auto& [key, item] : value.items()) {
    text += text.empty() ? "" : ", ";
    if (value.is_object()) text += StrCat(Compact(Json(key)), ": ");
    text += PythonValue(item);
  }
  return value.is_object() ? StrCat("{", text, "}") : StrCat("[", text, "]");
}

std::string PythonCall(const std::string& name, const Json& arguments) {
  std::string text;
  for (const auto& [key, value] : arguments.items()) {
    text += StrCat(text.empty() ? "" : ", ", key, "=", PythonValue(value));
  }
  return StrCat(name, "(", text, ")");
}

std::string ObjectCall(const CallSyntax& syntax, const std::string& name, const Json& arguments) {
  return Compact({{syntax.name_keys.front(), name}, {syntax.argument_keys.front(), arguments}});
}

}  // namespace

std::string CallText(const CallSyntax& syntax, const Json& calls) {
  const bool python = syntax.form == CallForm::kPython;
  if (!python && syntax.form != CallForm::kObject) return "";
  std::string text;
  for (const Json& call : calls) {
    const Json function = call.is_object() ? call.value("function", Json()) : Json();
    const Json name = function.is_object() ? function.value("name", Json()) : Json();
    if (!name.is_string()) return "";
    const Json arguments = function.value("arguments", Json::object());
    const std::string one = python ? PythonCall(name.get<std::string>(), arguments)
                                   : ObjectCall(syntax, name.get<std::string>(), arguments);
    if (syntax.listed) {
      text += StrCat(text.empty() ? "" : ", ", one);
    } else {
      text += StrCat(text.empty() ? "" : "\n", syntax.section_begin, one, syntax.section_end);
    }
  }
  if (!syntax.listed || text.empty()) return text;
  return StrCat(syntax.section_begin, "[", text, "]", syntax.section_end);
}

}  // namespace kvcache
