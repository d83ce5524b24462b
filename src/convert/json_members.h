// Members of JSON objects from files that may have anything.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvcache {

// Returns null for what is no object, has no such member, or has null there.
inline const nlohmann::json* Member(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// Returns `otherwise` if the member is no boolean.
inline bool FlagOf(const nlohmann::json& object, const char* key, bool otherwise = false) {
  const nlohmann::json* found = Member(object, key);
  return found != nullptr && found->is_boolean() ? found->get<bool>() : otherwise;
}

// Returns an empty text if the member is no text.
inline std::string TextOf(const nlohmann::json& object, const char* key) {
  const nlohmann::json* found = Member(object, key);
  return found != nullptr && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace kvcache
