#include "server/request/fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/strings.h"

namespace kvcache::server {

std::optional<std::int64_t> IntegerOf(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  const bool fits = number >= -0x1p63 && number < 0x1p63 && std::trunc(number) == number;
  return fits ? std::optional(static_cast<std::int64_t>(number)) : std::nullopt;
}

Fields::Fields(const Json& object, std::string prefix, const Json* defaults)
    : object_(object), defaults_(defaults), prefix_(std::move(prefix)) {
  if (!object.is_object()) {
    error_ = {StatusCode::kInvalidArgument,
              StrCat("the request is not a JSON object but ", object.type_name())};
  }
}

const Json* Fields::Find(const char* name) const {
  if (!object_.is_object()) return nullptr;
  for (const Json* const from : {&object_, defaults_}) {
    if (from == nullptr) continue;
    const auto found = from->find(name);
    if (found != from->end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

void Fields::Fail(const std::string& name, const std::string& rule) {
  if (!error_.ok()) return;
  field_ = prefix_ + name;
  error_ = {StatusCode::kInvalidArgument, StrCat("'", field_, "' ", rule)};
}

void Fields::Adopt(const Fields& inner) {
  if (!error_.ok()) return;
  error_ = inner.error_;
  field_ = inner.field_;
}

std::string Fields::Text(const char* name, const std::string& fallback) {
  const Json* const value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  Fail(name, StrCat("is ", value->type_name(), "; must be a string"));
  return fallback;
}

bool Fields::Bool(const char* name, bool fallback) {
  const Json* const value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Fail(name, StrCat("is ", value->type_name(), "; must be true or false"));
  return fallback;
}

double Fields::Number(const char* name, double fallback, double min, double max) {
  const Json* const value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    Fail(name, StrCat("is ", value->type_name(), "; must be a number"));
    return fallback;
  }
  const auto number = value->get<double>();
  if (number >= min && number <= max) return number;
  Fail(name, StrCat("is ", number, "; must be from ", min, " to ", max));
  return fallback;
}

std::int64_t Fields::Integer(const char* name, std::int64_t fallback, std::int64_t min,
                             std::int64_t max) {
  const Json* const value = Find(name);
  if (value == nullptr) return fallback;
  const auto number = IntegerOf(*value);
  if (number && *number >= min && *number <= max) return *number;
  const bool whole = value->is_number() && std::trunc(value->get<double>()) == value->get<double>();
  Fail(name, whole ? StrCat("must be from ", min, " to ", max) : "must be an integer");
  return fallback;
}

std::vector<std::string> Fields::Texts(const char* name, std::size_t max) {
  const Json* const value = Find(name);
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& item : list) {
    if (!item.is_string() || item.get_ref<const std::string&>().empty()) {
      Fail(name, "must be a string or an array of strings, none of them empty");
      return {};
    }
    texts.push_back(item.get<std::string>());
  }
  if (texts.size() > max) Fail(name, StrCat("has more than ", max, " strings"));
  return texts;
}

void Fields::RefuseUnless(const char* name, std::initializer_list<Json> neutral) {
  const Json* const value = Find(name);
  if (value == nullptr || std::find(neutral.begin(), neutral.end(), *value) != neutral.end()) {
    return;
  }
  const bool empty = (value->is_array() || value->is_object()) && value->empty();
  if (!empty) Fail(name, "is not supported by this server");
}

}  // namespace kvcache::server
