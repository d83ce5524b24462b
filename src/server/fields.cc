#include "server/fields.h"

#include <utility>

#include "base/strings.h"

namespace kvcache::server {

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

double Fields::Number(const char* name, double fallback, double least, double most) {
  const Json* const value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    Fail(name, StrCat("is ", value->type_name(), "; must be a number"));
    return fallback;
  }
  const auto number = value->get<double>();
  if (number >= least && number <= most) return number;
  Fail(name, StrCat("is ", number, "; must be from ", least, " to ", most));
  return fallback;
}

std::int64_t Fields::Integer(const char* name, std::int64_t fallback, std::int64_t least,
                             std::int64_t most) {
  const Json* const value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_number_integer()) {
    Fail(name, "must be an integer");
    return fallback;
  }
  const bool huge =
      value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(most);
  const std::int64_t number = huge ? most : value->get<std::int64_t>();
  if (!huge && number >= least && number <= most) return number;
  Fail(name, StrCat("must be from ", least, " to ", most));
  return fallback;
}

std::vector<std::string> Fields::Texts(const char* name, std::size_t most) {
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
  if (texts.size() > most) Fail(name, StrCat("has more than ", most, " strings"));
  return texts;
}

void Fields::Refuse(const char* name, const Json& neutral) {
  const Json* const value = Find(name);
  if (value == nullptr || *value == neutral) return;
  const bool empty = (value->is_array() || value->is_object()) && value->empty();
  if (!empty) Fail(name, "is not supported by this server");
}

}  // namespace kvcache::server
