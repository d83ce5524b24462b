#include "grammar/schema/references.h"

#include <utility>

#include "base/strings.h"
#include "grammar/schema/parts.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxBytes = std::size_t{4} << 20;

// Undoes %XX of a URI's fragment.
std::string Unescaped(std::string_view text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto digit = [&](std::size_t i) {
      return i < text.size() ? std::string_view("0123456789abcdef")
                                   .find(static_cast<char>(
                                       text[i] >= 'A' && text[i] <= 'F' ? text[i] + 32 : text[i]))
                             : std::string_view::npos;
    };
    const std::size_t high = digit(at + 1);
    const std::size_t low = digit(at + 2);
    if (text[at] == '%' && high < 16 && low < 16) {
      plain += static_cast<char>(high * 16 + low);
      at += 2;
    } else {
      plain += text[at];
    }
  }
  return plain;
}

}  // namespace

Result<const Json*> SchemaReferences::Target(const std::string& to,
                                             const std::string& place) const {
  if (!to.starts_with('#')) {
    return SchemaError(place, "has a '$ref' out of the schema, which this server does not support");
  }
  try {
    const Json::json_pointer pointer(Unescaped(std::string_view(to).substr(1)));
    if (root_.contains(pointer)) return &root_.at(pointer);
  } catch (const Json::exception&) {
    return SchemaError(place, StrCat("refers to ", Quoted(to), ", which is no place"));
  }
  return SchemaError(place, StrCat("refers to ", Quoted(to), ", which is not there"));
}

Result<const Json*> SchemaReferences::Keep(Json schema, const std::string& place) {
  std::string text = schema.dump(-1, ' ', false, Json::error_handler_t::replace);
  const std::size_t bytes = 2 * text.size() + 200;
  const auto [known, is_new] = made_.try_emplace(std::move(text));
  if (is_new) {
    made_bytes_ += bytes;
    if (made_bytes_ > kMaxBytes) {
      return SchemaError(place, "has conditions or names that are too large together");
    }
    known->second = std::move(schema);
  }
  return &known->second;
}

}  // namespace kvcache
