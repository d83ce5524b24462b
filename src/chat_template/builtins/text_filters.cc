// Filters that return strings.
#include <algorithm>

#include "base/strings.h"
#include "chat_template/builtins/filters.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {
namespace {

using Call = const FilterCall&;

Result<Value> TextResult(Call call, Result<MarkedText> text) {
  if (!text.ok()) return std::move(text).TakeStatus();
  return MakeText(std::move(text).value(), call.budget());
}

Result<Value> Trim(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOf(call.input, call.budget()));
  return StripText(text, Sides::kBoth, call.arguments, call.budget());
}

Result<Value> ChangeCase(Call call, Case to) {
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOf(call.input, call.budget()));
  return ChangeTextCase(text, to, call.arguments, call.budget());
}

Result<Value> ReplaceAll(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"old", "new", "count"}, 2));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOf(call.input, call.budget()));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText from, TextOf(*given[0], call.budget()));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText to, TextOf(*given[1], call.budget()));
  const bool all = given[2] == nullptr || given[2]->IsNone();
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t max_count,
                           IntegerOr(all ? nullptr : given[2], -1, "count"));
  return TextResult(call, Replace(text, from, to, max_count, call.budget()));
}

Result<Value> JoinItems(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"d", "attribute"}));
  KVCACHE_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(call.input, call.env));
  for (Value& item : items) {
    KVCACHE_ASSIGN_OR_RETURN(item, AttributeOf(item, given[1], call.env));
  }
  MarkedText separator;
  if (given[0] != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(separator, TextOf(*given[0], call.budget()));
  }
  return TextResult(call, Join(items, separator, call.budget()));
}

constexpr std::int64_t kMaxIndent = 1000;

Status IndentTooLarge(std::string_view argument, std::int64_t width) {
  return InvalidArgument(
      StrCat("argument '", argument, "' is ", width, "; must be at most ", kMaxIndent));
}

Result<Value> ToJson(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"ensure_ascii", "indent",
                                                                   "separators", "sort_keys"}));
  JsonStyle style;
  style.ascii = BoolOr(given[0], false);
  style.sorted = BoolOr(given[3], false);
  if (given[1] != nullptr && !given[1]->IsNone()) {
    style.lines = true;
    style.item_separator = MarkedText(",", Origin::kForeign);
    if (given[1]->IsText()) {
      style.indent = given[1]->text();
    } else {
      KVCACHE_ASSIGN_OR_RETURN(const std::int64_t width, IntegerOr(given[1], 0, "indent"));
      if (width > kMaxIndent) return IndentTooLarge("indent", width);
      style.indent =
          MarkedText(std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' '),
                     Origin::kForeign);
    }
  }
  if (given[2] != nullptr && !given[2]->IsNone()) {
    KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> pair, Iterate(*given[2], call.env));
    if (pair.size() != 2) {
      return InvalidArgument(
          StrCat("argument 'separators' has ", pair.size(), " items; must have 2"));
    }
    KVCACHE_ASSIGN_OR_RETURN(style.item_separator, TextOr(&pair[0], "", "separators"));
    KVCACHE_ASSIGN_OR_RETURN(style.key_separator, TextOr(&pair[1], "", "separators"));
  }
  return TextResult(call, JsonOf(call.input, style, call.budget()));
}

Result<Value> Indent(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"width", "first", "blank"}));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOr(&call.input, "", "s"));
  MarkedText by;
  if (given[0] != nullptr && given[0]->IsText()) {
    by = given[0]->text();
  } else {
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t width, IntegerOr(given[0], 4, "width"));
    if (width > kMaxIndent) return IndentTooLarge("width", width);
    by.Append(std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' '),
              Origin::kTemplate);
  }
  MarkedText ended = text;  // as in Jinja, so that a newline at the end counts
  ended.Append("\n", Origin::kTemplate);
  KVCACHE_RETURN_IF_ERROR(call.budget().Fits(text.size() * sizeof(TextRange)));
  MarkedText out;
  bool first = true;
  std::size_t last = 0;  // the end of the line before, without its line break
  for (const TextRange& line : SplitLines(ended.bytes(), false)) {
    KVCACHE_RETURN_IF_ERROR(call.budget().Spend(by.Footprint() + 1));
    if (!first) out.Append("\n", ended.OriginOf(last, line.begin));
    last = line.end;
    const bool indents =
        first ? BoolOr(given[1], false) : BoolOr(given[2], false) || line.begin < line.end;
    if (indents) out.Append(by);
    out.Append(ended, line.begin, line.end);
    KVCACHE_RETURN_IF_ERROR(out.Hold(call.budget()));
    first = false;
  }
  return TextResult(call, std::move(out));
}

Result<Value> Format(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText format, TextOf(call.input, call.budget()));
  if (!call.arguments.named.empty() && !call.arguments.positional.empty()) {
    return InvalidArgument("positional and named values cannot be mixed");
  }
  if (!call.arguments.named.empty()) {
    Dict dict;
    for (const auto& [name, value] : call.arguments.named) {
      KVCACHE_RETURN_IF_ERROR(dict.Set(Value(name), value, call.budget()));
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
  return TextResult(call, std::move(text));
}

Result<Value> AsText(Call call) {
  KVCACHE_RETURN_IF_ERROR(Bind(call.arguments, {}).status());
  return TextResult(call, TextOf(call.input, call.budget()));
}

constexpr Filter kFilters[] = {
    {"trim", Trim},
    {"upper", [](Call call) { return ChangeCase(call, Case::kUpper); }},
    {"lower", [](Call call) { return ChangeCase(call, Case::kLower); }},
    {"capitalize", [](Call call) { return ChangeCase(call, Case::kCapital); }},
    {"title", [](Call call) { return ChangeCase(call, Case::kTitleWords); }},
    {"replace", ReplaceAll},
    {"join", JoinItems},
    {"tojson", ToJson},
    {"indent", Indent},
    {"format", Format},
    {"string", AsText},
    {"safe", AsText},  // there is no automatic escaping
    {"escape", EscapeHtml},
    {"e", EscapeHtml},
};

}  // namespace

std::span<const Filter> TextFilters() {
  return kFilters;
}

}  // namespace kvcache::jinja
