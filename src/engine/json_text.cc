#include "engine/json_text.h"

#include <string>
#include <utility>

#include "base/strings.h"

namespace kvcache {
namespace {

using nlohmann::ordered_json;

// Counts brackets and separators outside of strings. It is exact for JSON; a text that is none is
// refused by the parser afterwards.
Status CheckBounds(std::string_view text) {
  int depth = 0;
  std::size_t values = 1;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == '[' || c == '{' || c == ',') ++values;
    if (depth > kMaxJsonNesting) {
      return {StatusCode::kUnsupported,
              StrCat("JSON is nested deeper than ", kMaxJsonNesting, " levels")};
    }
    if (values > kMaxJsonValues) {
      return {StatusCode::kUnsupported,
              StrCat("JSON has more than ",
                     WithThousands(static_cast<std::int64_t>(kMaxJsonValues)), " values")};
    }
  }
  return Status::Ok();
}

// "[json.exception.parse_error.101] parse error at line 1, column 2: …" without the brackets.
std::string Reason(std::string_view what) {
  const std::size_t end = what.find("] ");
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

}  // namespace

Result<ordered_json> ParseJson(std::string_view text) {
  KVCACHE_RETURN_IF_ERROR(CheckBounds(text));
  try {
    return ordered_json::parse(text.begin(), text.end());
  } catch (const ordered_json::exception& error) {
    return Status(StatusCode::kInvalidArgument, StrCat("not JSON: ", Reason(error.what())));
  }
}

}  // namespace kvcache
