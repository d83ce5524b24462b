#include "model_store/model_name.h"

#include <algorithm>
#include <cstddef>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::string_view kDefaultHost = "registry.ollama.ai";
constexpr std::string_view kDefaultSpace = "library";
constexpr std::string_view kDefaultTag = "latest";
constexpr std::size_t kMaxHost = 350;
constexpr std::size_t kMaxPart = 80;

bool IsWordCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// `others`: the characters besides letters, digits and '_' that may follow the first one.
Status CheckPart(std::string_view name, std::string_view kind, std::string_view part,
                 std::string_view others, std::size_t max) {
  const auto error = [&](std::string_view rule) {
    return InvalidArgument(
        StrCat("model name ", Quoted(name), ": its ", kind, " ", Quoted(part), " ", rule));
  };
  if (part.empty()) return error("is empty");
  if (part.size() > max) return error(StrCat("has more than ", max, " characters"));
  if (!IsWordCharacter(part.front())) return error("must begin with a letter, a digit or _");
  const bool valid = std::all_of(part.begin(), part.end(), [&](char c) {
    return IsWordCharacter(c) || others.find(c) != std::string_view::npos;
  });
  return valid ? Status::Ok() : error(StrCat("may hold letters, digits, _ and ", others, " only"));
}

Status Check(std::string_view text, const ModelName& name) {
  KVCACHE_RETURN_IF_ERROR(CheckPart(text, "host", name.host, "-.:", kMaxHost));
  KVCACHE_RETURN_IF_ERROR(CheckPart(text, "namespace", name.space, "-", kMaxPart));
  KVCACHE_RETURN_IF_ERROR(CheckPart(text, "model", name.model, "-.", kMaxPart));
  return CheckPart(text, "tag", name.tag, "-.", kMaxPart);
}

// Cuts the part after the last `separator` from `text`. Returns false if there is none.
bool CutLast(std::string_view* text, char separator, std::string* part) {
  const std::size_t at = text->rfind(separator);
  if (at == std::string_view::npos) return false;
  *part = text->substr(at + 1);
  *text = text->substr(0, at);
  return true;
}

}  // namespace

Result<ModelName> ModelName::Parse(std::string_view text) {
  ModelName name{std::string(kDefaultHost), std::string(kDefaultSpace), "",
                 std::string(kDefaultTag)};
  std::string_view rest = text;
  const std::size_t scheme = rest.find("://");
  if (scheme != std::string_view::npos) rest.remove_prefix(scheme + 3);
  const std::size_t slash = rest.rfind('/');
  const std::size_t colon = rest.rfind(':');
  const bool has_tag =
      colon != std::string_view::npos && (slash == std::string_view::npos || colon > slash);
  if (has_tag) (void)CutLast(&rest, ':', &name.tag);
  if (!CutLast(&rest, '/', &name.model)) {
    name.model = rest;
  } else if (!CutLast(&rest, '/', &name.space)) {
    name.space = rest;
  } else {
    name.host = rest;
  }
  KVCACHE_RETURN_IF_ERROR(Check(text, name));
  return name;
}

std::string ModelName::Path() const {
  return StrCat(host, "/", space, "/", model, "/", tag);
}

std::string ModelName::Short() const {
  const std::string last = StrCat(model, ":", tag);
  if (host != kDefaultHost) return StrCat(host, "/", space, "/", last);
  return space == kDefaultSpace ? last : StrCat(space, "/", last);
}

}  // namespace kvcache
