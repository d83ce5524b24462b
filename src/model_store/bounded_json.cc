#include "model_store/bounded_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr int kMaxNesting = 32;

// Returns the deepest nesting of brackets outside of strings.
int Nesting(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') ++i;
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if (c == '}' || c == ']') --depth;
  }
  return deepest;
}

}  // namespace

Result<nlohmann::json> ParseBoundedJson(std::string_view text, std::size_t max_bytes) {
  if (text.size() > max_bytes) {
    return Corrupt(StrCat("it has ", text.size(), " bytes; at most ", max_bytes, " are read"));
  }
  if (Nesting(text) > kMaxNesting) return Corrupt(StrCat("JSON nests deeper than ", kMaxNesting));
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    return Corrupt(StrCat("it is not JSON: byte ", error.byte));
  } catch (const nlohmann::json::out_of_range&) {
    return Corrupt("its JSON has a number that is too large");
  }
}

}  // namespace kvcache
