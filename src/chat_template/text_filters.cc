// Filters that give texts.
#include <algorithm>

#include "base/strings.h"
#include "chat_template/filters.h"
#include "chat_template/python_text.h"

namespace kvcache::jinja {
namespace {

using Call = const FilterCall&;

Result<Value> Made(Call call, Result<MarkedText> text) {
  if (!text.ok()) return std::move(text).TakeStatus();
  return MakeText(std::move(text).value(), call.budget());
}

Result<Value> Trim(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"chars"}));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOf(call.input, call.budget()));
  const bool spaces = given[0] == nullptr || given[0]->IsNone();
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText set, TextOr(spaces ? nullptr : given[0], "", "chars"));
  KVCACHE_RETURN_IF_ERROR(call.budget().Spend(text.size() * (1 + set.size())));
  const TextRange left = StripRange(text.bytes(), Sides::kBoth,
                                    spaces ? StripSet::kSpace : StripSet::kGiven, set.bytes());
  return Made(call, text.CutOut(left.begin, left.end, set.OriginOfAll()));
}

Result<Value> Cased(Call call, Case to) {
  KVCACHE_RETURN_IF_ERROR(Bind(call.arguments, {}).status());
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOf(call.input, call.budget()));
  KVCACHE_RETURN_IF_ERROR(call.budget().Spend(4 * text.size()));
  return Made(call, MapCase(text, to));
}

Result<Value> ReplaceAll(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"old", "new", "count"}, 2));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOf(call.input, call.budget()));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText from, TextOf(*given[0], call.budget()));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText to, TextOf(*given[1], call.budget()));
  const bool all = given[2] == nullptr || given[2]->IsNone();
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t most,
                           IntegerOr(all ? nullptr : given[2], -1, "count"));
  return Made(call, Replace(text, from, to, most, call.budget()));
}

Result<Value> JoinItems(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"d", "attribute"}));
  KVCACHE_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(call.input, call.budget()));
  for (Value& item : items) {
    KVCACHE_ASSIGN_OR_RETURN(item, AttributeOf(item, given[1], call.env));
  }
  MarkedText separator;
  if (given[0] != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(separator, TextOf(*given[0], call.budget()));
  }
  return Made(call, Join(items, separator, call.budget()));
}

Result<Value> ToJson(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"ensure_ascii", "indent",
                                                                   "separators", "sort_keys"}));
  JsonStyle style;
  style.ascii = TruthOr(given[0], false);
  style.sorted = TruthOr(given[3], false);
  if (given[1] != nullptr && !given[1]->IsNone()) {
    style.lines = true;
    style.item_separator = MarkedText(",", Origin::kForeign);
    if (given[1]->IsText()) {
      style.indent = given[1]->text();
    } else {
      KVCACHE_ASSIGN_OR_RETURN(const std::int64_t width, IntegerOr(given[1], 0, "indent"));
      if (width > 1000) return Wrong("an indent of more than 1000");
      style.indent =
          MarkedText(std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' '),
                     Origin::kForeign);
    }
  }
  if (given[2] != nullptr && !given[2]->IsNone()) {
    KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> pair, Iterate(*given[2], call.budget()));
    if (pair.size() != 2) return Wrong("argument 'separators' is a pair of texts");
    KVCACHE_ASSIGN_OR_RETURN(style.item_separator, TextOr(&pair[0], "", "separators"));
    KVCACHE_ASSIGN_OR_RETURN(style.key_separator, TextOr(&pair[1], "", "separators"));
  }
  return Made(call, JsonOf(call.input, style, call.budget()));
}

Result<Value> Indent(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"width", "first", "blank"}));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOr(&call.input, "", "s"));
  MarkedText by;
  if (given[0] != nullptr && given[0]->IsText()) {
    by = given[0]->text();
  } else {
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t width, IntegerOr(given[0], 4, "width"));
    if (width > 1000) return Wrong("an indent of more than 1000");
    by.Append(std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' '),
              Origin::kTemplate);
  }
  MarkedText ended = text;  // as Jinja does, so that a newline at the end counts
  ended.Append("\n", Origin::kTemplate);
  MarkedText out;
  bool first = true;
  std::size_t last = 0;  // the end of the line before, without its line break
  for (const TextRange& line : SplitLines(ended.bytes(), false)) {
    KVCACHE_RETURN_IF_ERROR(call.budget().Spend(by.Footprint() + 1));
    if (!first) out.Append("\n", ended.OriginOf(last, line.begin));
    last = line.end;
    const bool indents =
        first ? TruthOr(given[1], false) : TruthOr(given[2], false) || line.begin < line.end;
    if (indents) out.Append(by);
    out.Append(ended, line.begin, line.end);
    first = false;
  }
  return Made(call, std::move(out));
}

Result<Value> Format(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText format, TextOf(call.input, call.budget()));
  if (!call.arguments.named.empty() && !call.arguments.positional.empty()) {
    return Wrong("values with and without names cannot be mixed");
  }
  if (!call.arguments.named.empty()) {
    Dict dict;
    for (const auto& [name, value] : call.arguments.named) {
      KVCACHE_RETURN_IF_ERROR(AddItem(dict, Value(name), value, call.budget()));
    }
    return FormatPercent(format, MakeDict(std::move(dict)), call.budget());
  }
  KVCACHE_ASSIGN_OR_RETURN(const Value values,
                           MakeList(call.arguments.positional, call.budget(), ListKind::kTuple));
  return FormatPercent(format, values, call.budget());
}

Result<Value> EscapeHtml(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(MarkedText text, TextOf(call.input, call.budget()));
  constexpr std::pair<std::string_view, std::string_view> kEscapes[] = {
      {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
  for (const auto& [from, to] : kEscapes) {
    KVCACHE_ASSIGN_OR_RETURN(text, Replace(text, MarkedText(from, Origin::kTemplate),
                                           MarkedText(to, Origin::kForeign), -1, call.budget()));
  }
  return Made(call, std::move(text));
}

Result<Value> AsText(Call call) {
  KVCACHE_RETURN_IF_ERROR(Bind(call.arguments, {}).status());
  return Made(call, TextOf(call.input, call.budget()));
}

constexpr Filter kFilters[] = {
    {"trim", Trim},
    {"upper", [](Call call) { return Cased(call, Case::kUpper); }},
    {"lower", [](Call call) { return Cased(call, Case::kLower); }},
    {"capitalize", [](Call call) { return Cased(call, Case::kCapital); }},
    {"title", [](Call call) { return Cased(call, Case::kTitleWords); }},
    {"replace", ReplaceAll},
    {"join", JoinItems},
    {"tojson", ToJson},
    {"indent", Indent},
    {"format", Format},
    {"string", AsText},
    {"safe", AsText},  // nothing is escaped by itself here
    {"escape", EscapeHtml},
    {"e", EscapeHtml},
};

}  // namespace

std::span<const Filter> TextFilters() {
  return kFilters;
}

}  // namespace kvcache::jinja
