#include "chat_template/value/value_json.h"

#include <algorithm>
#include <limits>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::jinja {
namespace {

using nlohmann::ordered_json;

bool IsKnownRole(std::string_view role) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user",    "assistant",
                                         "tool",   "function",  "ipython", "model"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

class Converter {
 public:
  Converter(Roles roles, Budget& budget) : roles_(roles), budget_(budget) {}

  // Converts `json`, which is at nesting `level`. The check is first, because this recurses.
  Result<Value> Convert(const ordered_json& json, int level) {
    if (level > kMaxNesting) {
      return Unsupported(StrCat("JSON is nested deeper than ", kMaxNesting, " levels"));
    }
    switch (json.type()) {
      case ordered_json::value_t::null: return Value::None();
      case ordered_json::value_t::boolean: return Value::Bool(json.get<bool>());
      case ordered_json::value_t::number_integer: return Value(json.get<std::int64_t>());
      case ordered_json::value_t::number_unsigned: return Unsigned(json.get<std::uint64_t>());
      case ordered_json::value_t::number_float: return Value(json.get<double>());
      case ordered_json::value_t::string:
        return MakeText(MarkedText(json.get_ref<const std::string&>(), Origin::kForeign), budget_);
      case ordered_json::value_t::array: return Array(json, level);
      case ordered_json::value_t::object: return Object(json, level);
      default: break;
    }
    return InvalidArgument(StrCat("JSON type ", json.type_name(), " is not supported"));
  }

 private:
  static Result<Value> Unsigned(std::uint64_t number) {
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return Unsupported(StrCat("integer ", number, " is too large; must be below 2^63"));
    }
    return Value(static_cast<std::int64_t>(number));
  }

  Result<Value> Array(const ordered_json& json, int level) {
    std::vector<Value> items;
    items.reserve(json.size());
    for (const ordered_json& element : json) {
      KVCACHE_ASSIGN_OR_RETURN(Value item, Convert(element, level + 1));
      items.push_back(std::move(item));
    }
    return MakeList(std::move(items), budget_);
  }

  Result<Value> Object(const ordered_json& json, int level) {
    Dict dict;
    for (auto it = json.begin(); it != json.end(); ++it) {  // items() would copy each key
      const std::string& name = it.key();
      const ordered_json& element = it.value();
      const bool is_role = roles_ == Roles::kKnownAreTrusted && level == 1 && name == "role" &&
                           element.is_string() &&
                           IsKnownRole(element.get_ref<const std::string&>());
      Value value;
      if (is_role) {
        value = Value::Literal(element.get_ref<const std::string&>());
      } else {
        KVCACHE_ASSIGN_OR_RETURN(value, Convert(element, level + 1));
      }
      KVCACHE_RETURN_IF_ERROR(dict.Set(Key(name), std::move(value), budget_));
    }
    return MakeDict(std::move(dict));
  }

  // Returns the key as a value. Conversations repeat few keys, so their texts are shared.
  Value Key(const std::string& name) {
    const auto [known, is_new] = keys_.try_emplace(name);
    if (is_new) known->second = Value(MarkedText(name, Origin::kForeign));
    return known->second;
  }

  const Roles roles_;
  Budget& budget_;
  std::unordered_map<std::string, Value> keys_;
};

}  // namespace

Result<Value> FromJson(const ordered_json& json, Roles roles, Budget& budget) {
  return Converter(roles, budget).Convert(json, 0);
}

}  // namespace kvcache::jinja
