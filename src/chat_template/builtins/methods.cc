// Methods of strings, lists, dicts and loops.
#include <algorithm>

#include "base/strings.h"
#include "chat_template/builtins/builtins.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {
namespace {

struct MethodCall {
  const Value& self;
  const Arguments& arguments;
  Environment& env;

  const MarkedText& text() const { return self.text(); }
  Budget& budget() const { return env.budget; }
};

Result<Value> Strip(const MethodCall& call, Sides sides) {
  return StripText(call.text(), sides, call.arguments, call.budget());
}

Result<Value> Split(const MethodCall& call, From from) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"sep", "maxsplit"}));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t max_cuts, IntegerOr(given[1], -1, "maxsplit"));
  const std::string_view bytes = call.text().bytes();
  KVCACHE_RETURN_IF_ERROR(call.budget().Spend(2 * bytes.size()));
  KVCACHE_RETURN_IF_ERROR(call.budget().Fits(bytes.size() * sizeof(TextRange)));
  if (given[0] == nullptr || given[0]->IsNone()) {
    return ListOf(call.text(), SplitAtSpace(bytes, max_cuts, from), call.budget());
  }
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText separator, TextOr(given[0], "", "sep"));
  if (separator.empty()) return InvalidArgument("argument 'sep' is empty; must be a separator");
  if (from == From::kRight) {
    KVCACHE_RETURN_IF_ERROR(call.budget().Spend(bytes.size() * (separator.size() / 4)));
  }
  return ListOf(call.text(), SplitAt(bytes, separator.bytes(), max_cuts, from), call.budget(),
                separator.OriginOfAll());
}

enum class End : std::uint8_t { kFront, kBack };

bool IsAt(End end, std::string_view text, std::string_view part) {
  return end == End::kFront ? text.starts_with(part) : text.ends_with(part);
}

// startswith and endswith. The argument is a string, or a tuple of alternatives.
Result<Value> HasAffix(const MethodCall& call, End end) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"prefix"}, 1));
  std::vector<Value> parts = {*given[0]};
  if (given[0]->IsList() && given[0]->list().kind == ListKind::kTuple) parts = given[0]->items();
  for (const Value& part : parts) {
    KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOr(&part, "", "prefix"));
    KVCACHE_RETURN_IF_ERROR(call.budget().Spend(Budget::kStep + text.Footprint()));
    if (IsAt(end, call.text().bytes(), text.bytes())) return Value::Bool(true);
  }
  return Value::Bool(false);
}

Result<Value> RemoveAffix(const MethodCall& call, End end) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"prefix"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText part, TextOr(given[0], "", "prefix"));
  if (!IsAt(end, call.text().bytes(), part.bytes())) return call.self;
  const std::size_t size = call.text().size();
  const std::size_t begin = end == End::kFront ? part.size() : 0;
  const std::size_t last = end == End::kBack ? size - part.size() : size;
  return MakeText(call.text().CutOut(begin, last, part.OriginOfAll()), call.budget());
}

Result<Value> ReplaceAll(const MethodCall& call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"old", "new", "count"}, 2));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText from, TextOr(given[0], "", "old"));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText to, TextOr(given[1], "", "new"));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t max_count, IntegerOr(given[2], -1, "count"));
  KVCACHE_ASSIGN_OR_RETURN(MarkedText text,
                           Replace(call.text(), from, to, max_count, call.budget()));
  return MakeText(std::move(text), call.budget());
}

// find, rfind and index. Returns the index of the character where the match begins.
Result<Value> FindSubstring(const MethodCall& call, From from, bool required) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"sub"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText part, TextOr(given[0], "", "sub"));
  const std::string_view bytes = call.text().bytes();
  KVCACHE_RETURN_IF_ERROR(call.budget().Spend(
      bytes.size() / 4 * (from == From::kRight ? 1 + part.size() / 4 : std::size_t{1})));
  const std::size_t at =
      from == From::kLeft ? FindText(bytes, part.bytes(), 0) : bytes.rfind(part.bytes());
  if (at == std::string::npos && required) return InvalidArgument("the substring is not found");
  if (at == std::string::npos) return Value(std::int64_t{-1});
  return Value(static_cast<std::int64_t>(CountCharacters(bytes.substr(0, at))));
}

// partition and rpartition: the text before the separator, the separator, the text after it.
Result<Value> Partition(const MethodCall& call, From from) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"sep"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText separator, TextOr(given[0], "", "sep"));
  if (separator.empty()) return InvalidArgument("argument 'sep' is empty; must be a separator");
  const MarkedText& text = call.text();
  const bool left = from == From::kLeft;
  KVCACHE_RETURN_IF_ERROR(
      call.budget().Spend(text.size() * (left ? std::size_t{1} : 1 + separator.size() / 4)));
  const std::size_t found =
      left ? FindText(text.bytes(), separator.bytes(), 0) : text.bytes().rfind(separator.bytes());
  const bool none = found == std::string_view::npos;
  const std::size_t at = none ? (left ? text.size() : 0) : found;
  const std::size_t after = none ? at : at + separator.size();
  const Origin by = separator.OriginOfAll();
  KVCACHE_ASSIGN_OR_RETURN(Value before, MakeText(text.CutOut(0, at, by), call.budget()));
  KVCACHE_ASSIGN_OR_RETURN(Value rest,
                           MakeText(text.CutOut(after, text.size(), by), call.budget()));
  Value middle = none ? Value::Literal("") : Value(separator);
  return MakeList({std::move(before), std::move(middle), std::move(rest)}, call.budget(),
                  ListKind::kTuple);
}

Result<Value> CountSubstring(const MethodCall& call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"sub"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText part, TextOr(given[0], "", "sub"));
  KVCACHE_RETURN_IF_ERROR(call.budget().Spend(call.text().size() * 16));
  if (part.empty()) {
    return Value(static_cast<std::int64_t>(CountCharacters(call.text().bytes())) + 1);
  }
  const auto pieces = SplitAt(call.text().bytes(), part.bytes(), -1, From::kLeft);
  return Value(static_cast<std::int64_t>(pieces.size()) - 1);
}

Result<Value> Lines(const MethodCall& call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"keepends"}));
  const auto lines = SplitLines(call.text().bytes(), BoolOr(given[0], false));
  return ListOf(call.text(), lines, call.budget());
}

Result<Value> JoinTexts(const MethodCall& call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"iterable"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(*given[0], call.env));
  for (const Value& item : items) {
    if (!item.IsText()) {
      return InvalidArgument(StrCat("an item is ", item.KindName(), "; must be a string"));
    }
  }
  KVCACHE_ASSIGN_OR_RETURN(MarkedText text, Join(items, call.text(), call.budget()));
  return MakeText(std::move(text), call.budget());
}

Result<Value> ChangeCase(const MethodCall& call, Case to) {
  return ChangeTextCase(call.text(), to, call.arguments, call.budget());
}

Result<Value> GetWithDefault(const MethodCall& call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"key", "default"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const Value* item, call.self.dict().FindKey(*given[0], call.budget()));
  if (item != nullptr) return *item;
  return given[1] == nullptr ? Value::None() : *given[1];
}

enum class View : std::uint8_t { kKeys, kValues, kItems };

Result<Value> ViewOf(const MethodCall& call, View view) {
  KVCACHE_RETURN_IF_ERROR(Bind(call.arguments, {}).status());
  std::vector<Value> all;
  for (const auto& [key, value] : call.self.dict().items()) {
    if (view == View::kItems) {
      KVCACHE_ASSIGN_OR_RETURN(Value pair, MakeList({key, value}, call.budget(), ListKind::kTuple));
      all.push_back(std::move(pair));
    } else {
      all.push_back(view == View::kKeys ? key : value);
    }
  }
  return MakeList(std::move(all), call.budget());
}

Result<Value> CountItems(const MethodCall& call, bool index) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"value"}, 1));
  std::int64_t count = 0;
  for (std::size_t i = 0; i < call.self.items().size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(const bool equal,
                             Equal(call.self.items()[i], *given[0], call.budget()));
    if (equal && index) return Value(static_cast<std::int64_t>(i));
    count += equal ? 1 : 0;
  }
  if (index) return InvalidArgument("the value is not in the list");
  return Value(count);
}

Result<Value> Cycle(const MethodCall& call) {
  const std::vector<Value>& values = call.arguments.positional;
  if (values.empty()) return InvalidArgument("'cycle' has no arguments; must have at least 1");
  const auto index = static_cast<std::size_t>(call.self.loop().index0());
  return values[index % values.size()];
}

struct Method {
  Value::Kind kind;
  std::string_view name;
  Result<Value> (*run)(const MethodCall& call);
};

using Call = const MethodCall&;
constexpr auto kText = Value::Kind::kText;
constexpr auto kList = Value::Kind::kList;
constexpr auto kDict = Value::Kind::kDict;

const Method kMethods[] = {
    {kText, "strip", [](Call call) { return Strip(call, Sides::kBoth); }},
    {kText, "lstrip", [](Call call) { return Strip(call, Sides::kLeft); }},
    {kText, "rstrip", [](Call call) { return Strip(call, Sides::kRight); }},
    {kText, "split", [](Call call) { return Split(call, From::kLeft); }},
    {kText, "rsplit", [](Call call) { return Split(call, From::kRight); }},
    {kText, "splitlines", Lines},
    {kText, "startswith", [](Call call) { return HasAffix(call, End::kFront); }},
    {kText, "endswith", [](Call call) { return HasAffix(call, End::kBack); }},
    {kText, "removeprefix", [](Call call) { return RemoveAffix(call, End::kFront); }},
    {kText, "removesuffix", [](Call call) { return RemoveAffix(call, End::kBack); }},
    {kText, "replace", ReplaceAll},
    {kText, "find", [](Call call) { return FindSubstring(call, From::kLeft, false); }},
    {kText, "rfind", [](Call call) { return FindSubstring(call, From::kRight, false); }},
    {kText, "index", [](Call call) { return FindSubstring(call, From::kLeft, true); }},
    {kText, "count", CountSubstring},
    {kText, "partition", [](Call call) { return Partition(call, From::kLeft); }},
    {kText, "rpartition", [](Call call) { return Partition(call, From::kRight); }},
    {kText, "format",
     [](Call call) { return FormatBraces(call.text(), call.arguments, call.env); }},
    {kText, "join", JoinTexts},
    {kText, "upper", [](Call call) { return ChangeCase(call, Case::kUpper); }},
    {kText, "lower", [](Call call) { return ChangeCase(call, Case::kLower); }},
    {kText, "title", [](Call call) { return ChangeCase(call, Case::kTitle); }},
    {kText, "capitalize", [](Call call) { return ChangeCase(call, Case::kCapital); }},
    {kText, "isupper",
     [](Call call) -> Result<Value> {
       return Value::Bool(IsAll(LetterCase::kUpper, call.text().bytes()));
     }},
    {kText, "islower",
     [](Call call) -> Result<Value> {
       return Value::Bool(IsAll(LetterCase::kLower, call.text().bytes()));
     }},
    {kText, "isdigit",
     [](Call call) -> Result<Value> { return Value::Bool(IsDigit(call.text().bytes())); }},
    {kText, "isspace",
     [](Call call) -> Result<Value> {
       const TextRange left = StripRange(call.text().bytes(), Sides::kLeft, StripSet::kSpace);
       return Value::Bool(!call.text().empty() && left.begin == left.end);
     }},
    {kDict, "get", GetWithDefault},
    {kDict, "keys", [](Call call) { return ViewOf(call, View::kKeys); }},
    {kDict, "values", [](Call call) { return ViewOf(call, View::kValues); }},
    {kDict, "items", [](Call call) { return ViewOf(call, View::kItems); }},
    {kDict, "copy", [](Call call) -> Result<Value> { return call.self; }},
    {kList, "count", [](Call call) { return CountItems(call, false); }},
    {kList, "index", [](Call call) { return CountItems(call, true); }},
    {Value::Kind::kLoop, "cycle", Cycle},
};

const Method* FindMethod(Value::Kind kind, std::string_view name) {
  for (const Method& method : kMethods) {
    if (method.kind == kind && method.name == name) return &method;
  }
  return nullptr;
}

}  // namespace

bool HasMethod(const Value& self, std::string_view name) {
  return FindMethod(self.kind(), name) != nullptr;
}

Result<Value> CallMethod(const Callable& method, const Arguments& arguments, Environment& env) {
  const Method* found = FindMethod(method.self.kind(), method.name);
  if (found == nullptr) return NotSupported("method", method.name);
  return found->run({method.self, arguments, env});
}

}  // namespace kvcache::jinja
