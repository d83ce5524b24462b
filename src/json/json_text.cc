#include "json/json_text.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kStructure = "[]{},";
constexpr std::size_t kMaxReasonBytes = 200;

// Counts brackets and separators outside of strings. It is exact for JSON; a text that is none is
// refused by the parser afterwards.
class BoundsCheck {
 public:
  // `c`: one of kStructure, outside of strings.
  Status Take(char c) {
    if (c == '[' || c == '{') KVCACHE_RETURN_IF_ERROR(Open(c == '{'));
    if (c == ']' || c == '}') depth_ -= depth_ > 0 ? 1 : 0;
    return c == ',' ? Separate() : Status::Ok();
  }

 private:
  struct Level {
    bool is_object = false;
    std::size_t separators = 0;
  };

  Status Open(bool is_object) {
    if (depth_ == kMaxJsonNesting) {
      return Unsupported(StrCat("JSON is nested deeper than ", kMaxJsonNesting, " levels"));
    }
    levels_[static_cast<std::size_t>(++depth_)] = {is_object, 0};
    return AddValue();
  }

  Status Separate() {
    Level& level = levels_[static_cast<std::size_t>(depth_)];
    if (++level.separators >= kMaxJsonKeys && level.is_object) {
      return Unsupported(StrCat("JSON has an object with more than ",
                                WithThousands(static_cast<std::int64_t>(kMaxJsonKeys)), " keys"));
    }
    return AddValue();
  }

  Status AddValue() {
    if (++values_ <= kMaxJsonValues) return Status::Ok();
    return Unsupported(StrCat("JSON has more than ",
                              WithThousands(static_cast<std::int64_t>(kMaxJsonValues)), " values"));
  }

  std::array<Level, kMaxJsonNesting + 1> levels_{};  // [0]: outside of all brackets
  int depth_ = 0;
  std::size_t values_ = 1;
};

Status CheckBounds(std::string_view text) {
  BoundsCheck check;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    if (kStructure.find(c) != std::string_view::npos) KVCACHE_RETURN_IF_ERROR(check.Take(c));
  }
  return Status::Ok();
}

// "[json.exception.parse_error.101] parse error at line 1, column 2: …" without the brackets. The
// library repeats the whole token that it stumbles over; only its beginning is kept.
std::string Reason(std::string_view what) {
  const std::size_t end = what.find("] ");
  if (end != std::string_view::npos) what.remove_prefix(end + 2);
  if (what.size() <= kMaxReasonBytes) return std::string(what);
  std::size_t bytes = kMaxReasonBytes;
  while (bytes > 0 && (static_cast<unsigned char>(what[bytes]) & 0xc0) == 0x80) --bytes;
  return StrCat(what.substr(0, bytes), "…");
}

}  // namespace

Result<ordered_json> ParseJson(std::string_view text) {
  KVCACHE_RETURN_IF_ERROR(CheckBounds(text));
  try {
    return ordered_json::parse(text.begin(), text.end());
  } catch (const ordered_json::exception& error) {
    return InvalidArgument(StrCat("not JSON: ", Reason(error.what())));
  }
}

}  // namespace kvcache
