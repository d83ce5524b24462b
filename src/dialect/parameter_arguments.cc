#include <utility>

#include "dialect/argument_reader.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

// Whether a value is a string: for sure, for sure not, or if it is no other JSON.
enum class Kind : std::uint8_t { kString, kOther, kEither };

Kind KindOf(const Json* schema, const std::string& name) {
  if (schema == nullptr || !schema->is_object()) return Kind::kEither;
  const auto properties = schema->find("properties");
  if (properties == schema->end() || !properties->is_object()) return Kind::kEither;
  const auto found = properties->find(name);
  if (found == properties->end() || !found->is_object()) return Kind::kEither;
  const auto type = found->find("type");
  if (type != found->end() && type->is_string()) {
    return *type == "string" ? Kind::kString : Kind::kOther;
  }
  const auto values = found->find("enum");
  if (type == found->end() && values != found->end() && values->is_array()) {
    for (const Json& value : *values) {
      if (!value.is_string()) return Kind::kEither;
    }
    return Kind::kString;
  }
  return Kind::kEither;
}

// Returns a value that is no string for sure as JSON.
std::string JsonOf(const std::string& text) {
  std::string word(Trimmed(text));
  if (word == "True" || word == "False") return word == "True" ? "true" : "false";
  if (word == "None") return "null";
  if (Json::accept(word)) return word;
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

ParameterArguments::ParameterArguments(const CallSyntax& syntax, const Json* schema)
    : syntax_(syntax), schema_(schema) {}

bool ParameterArguments::Read(std::string_view& text, bool last, std::string* out) {
  while (!ended_ && Step(text, last, out)) {
  }
  return ended_;
}

bool ParameterArguments::Step(std::string_view& text, bool last, std::string* out) {
  switch (state_) {
    case State::kBetween:
      SkipSpaces(text);
      if (TakeMarker(text, syntax_.parameter_begin)) {
        name_.clear();
        state_ = State::kName;
        return true;
      }
      if (text.empty() || (Begins(text, syntax_.parameter_begin) && !last)) return false;
      *out += opened_ ? "}" : "{}";
      ended_ = true;
      return false;
    case State::kName: return TakeName(text);
    case State::kKind: return TakeKind(text, out);
    case State::kValue: return InValue(text, last, out);
  }
  return false;
}

bool ParameterArguments::TakeName(std::string_view& text) {
  const FoundMarker found = FindMarker(text, {syntax_.parameter_name_end});
  name_ += text.substr(0, found.certain);
  text.remove_prefix(found.certain);
  if (!TakeMarker(text, syntax_.parameter_name_end)) return false;
  kind_.clear();
  state_ = State::kKind;
  return true;
}

bool ParameterArguments::TakeKind(std::string_view& text, std::string* out) {
  if (!syntax_.value_begin.empty()) {
    const FoundMarker found = FindMarker(text, {syntax_.value_begin});
    kind_ += text.substr(0, found.certain);
    text.remove_prefix(found.certain);
    if (!TakeMarker(text, syntax_.value_begin)) return false;
  }
  BeginValue(out);
  return true;
}

void ParameterArguments::BeginValue(std::string* out) {
  const std::string name(Trimmed(name_));
  *out += std::exchange(opened_, true) ? "" : "{";
  *out += std::exchange(any_, true) ? ", " : "";
  *out += Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
  *out += ": ";
  const std::string_view kind = Trimmed(kind_);
  const Kind known = KindOf(schema_, name);
  streams_ = kind == "true" || (kind != "false" && known == Kind::kString);
  if (streams_) *out += '"';
  value_.clear();
  first_ = true;
  state_ = State::kValue;
}

bool ParameterArguments::InValue(std::string_view& text, bool last, std::string* out) {
  if (text.empty()) return false;
  if (std::exchange(first_, false) && syntax_.padded && text[0] == '\n') {
    text.remove_prefix(1);
    return true;
  }
  const FoundMarker found = FindMarker(text, {syntax_.parameter_end});
  std::size_t certain = found.certain;
  const bool ends = found.at != std::string_view::npos;
  if (last && !ends) certain = text.size();
  const std::size_t edge = text.find(kEdge);
  // Another marker ends the value, too.
  const bool broken = edge < certain;
  certain = std::min(certain, edge);
  // A line break may be the last one.
  const bool pads = syntax_.padded && certain > 0 && text[certain - 1] == '\n';
  const std::size_t size = pads ? certain - 1 : certain;
  for (const char c : text.substr(0, size)) {
    if (streams_) {
      AppendEscaped(c, out);
    } else {
      value_ += c;
    }
  }
  text.remove_prefix(ends || broken || last ? certain : size);
  if (broken || ends) {
    EndValue(out);
    (void)TakeMarker(text, syntax_.parameter_end);
    return true;
  }
  return false;
}

void ParameterArguments::EndValue(std::string* out) {
  *out += streams_ ? "\"" : JsonOf(value_);
  streams_ = false;
  state_ = State::kBetween;
}

std::string ParameterArguments::Closing() const {
  if (ended_) return "";
  if (!opened_) return "{}";
  if (state_ != State::kValue) return "}";
  return (streams_ ? "\"" : JsonOf(value_)) + "}";
}

}  // namespace kvcache
