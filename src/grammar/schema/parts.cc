#include "grammar/schema/parts.h"

#include <algorithm>
#include <string_view>

#include "base/errors.h"
#include "base/strings.h"
#include "grammar/schema/keywords.h"

namespace kvcache {
namespace {

constexpr std::int64_t kMaxCount = 10'000;    // of items and properties
constexpr std::int64_t kMaxLength = 100'000;  // of texts

}  // namespace

SchemaItems ItemsOf(const nlohmann::ordered_json& schema) {
  const auto find = [&](const char* keyword) {
    const auto found = schema.find(keyword);
    return found == schema.end() ? nullptr : &*found;
  };
  // Old drafts have an array of items.
  const nlohmann::ordered_json* const items = find("items");
  if (items != nullptr && items->is_array()) return {items, find("additionalItems")};
  return {find("prefixItems"), items};
}

Status SchemaError(const std::string& place, const std::string& problem) {
  return InvalidArgument(StrCat("the schema at ", Quoted(place), " ", problem));
}
Status UnsupportedKeyword(const std::string& place, std::string_view keyword) {
  return SchemaError(place,
                     StrCat("has ", Quoted(keyword), ", which this server does not support"));
}

std::vector<const nlohmann::ordered_json*> EachOf(const SchemaParts& parts, const char* keyword) {
  std::vector<const nlohmann::ordered_json*> values;
  for (const SchemaPart& part : parts) {
    const auto found = part.schema->find(keyword);
    if (found != part.schema->end()) values.push_back(&*found);
  }
  return values;
}

bool IsSimpleNot(const nlohmann::ordered_json& refused) {
  return refused.is_object() && refused.size() == 1 &&
         (refused.contains("enum") || refused.contains("pattern") || refused.contains("format") ||
          refused.value("type", nlohmann::ordered_json()) == "integer");
}

std::vector<const nlohmann::ordered_json*> SimpleNotsOf(const SchemaParts& parts) {
  std::vector<const nlohmann::ordered_json*> values = EachOf(parts, "not");
  std::erase_if(values, [](const auto* value) { return !IsSimpleNot(*value); });
  return values;
}

Result<std::optional<std::int64_t>> CountOf(const SchemaParts& parts, const char* keyword,
                                            const std::string& place) {
  const SchemaKeyword& known = *FindKeyword(keyword);
  const bool greatest = known.merge == SchemaMerge::kGreatest;
  const std::int64_t max = known.type == SchemaType::kString ? kMaxLength : kMaxCount;
  std::optional<double> count;
  for (const auto* const value : EachOf(parts, keyword)) {
    const auto own = value->get<double>();
    count = !count ? own : greatest ? std::max(*count, own) : std::min(*count, own);
  }
  if (!count) return std::optional<std::int64_t>();
  if (*count > static_cast<double>(max)) {
    return SchemaError(place, StrCat("has ", Quoted(keyword), " above ", WithThousands(max),
                                     ", which is more than this server counts"));
  }
  return std::optional(static_cast<std::int64_t>(*count));
}

}  // namespace kvcache
