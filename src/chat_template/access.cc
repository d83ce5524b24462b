// Attributes, items and slices of values.
#include <algorithm>
#include <limits>

#include "base/strings.h"
#include "chat_template/builtins/builtins.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {
namespace {

// Returns an attribute of the variable `loop`; an undefined value if it has none of this name.
Result<Value> LoopAttribute(const Value& object, const MarkedText& text, Environment& env) {
  const std::string_view name = text.bytes();
  Loop& loop = object.loop();
  const std::int64_t index = loop.index0();
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "depth") return Value(std::int64_t{1});
  if (name == "depth0") return Value(std::int64_t{0});
  if (name == "previtem") {
    return index > 0 ? loop.previous()
                     : Value::Missing("loop.previtem is undefined in the first iteration");
  }
  if (name == "last" || name == "nextitem") {
    KVCACHE_ASSIGN_OR_RETURN(const std::optional<Value> next, loop.Peek(env));
    if (name == "last") return Value::Bool(!next);
    return next ? *next : Value::Missing("loop.nextitem is undefined in the last iteration");
  }
  if (name != "length" && name != "revindex" && name != "revindex0") {
    return Value::MissingIn(object, text);
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t length, loop.Length(env));
  if (name == "length") return Value(length);
  return Value(name == "revindex" ? length - index : length - index - 1);
}

// Returns whether Python has this attribute, but templates may not use it or have no use for it.
bool IsUnsupportedPythonAttribute(const Value& object, std::string_view name) {
  const auto in = [name](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (name.starts_with("__")) return true;
  switch (object.kind()) {
    case Value::Kind::kText:
      return in({"casefold", "center", "encode", "expandtabs", "format_map", "isascii", "isdecimal",
                 "isidentifier", "isnumeric", "isprintable", "istitle", "ljust", "maketrans",
                 "rindex", "rjust", "swapcase", "translate", "zfill"});
    case Value::Kind::kList:
      return in(
          {"append", "clear", "copy", "extend", "insert", "pop", "remove", "reverse", "sort"});
    case Value::Kind::kDict:
      return in({"clear", "fromkeys", "pop", "popitem", "setdefault", "update"});
    case Value::Kind::kLoop: return in({"changed"});
    default: return false;
  }
}

Result<Value> Method(const Value& object, std::string_view name, Environment& env) {
  KVCACHE_RETURN_IF_ERROR(env.budget.Spend(Budget::kItem));
  Callable method;
  method.kind = Callable::Kind::kMethod;
  method.name = std::string(name);
  method.self = object;
  method.nesting = 1 + object.Nesting();
  if (method.nesting > kMaxNesting) {
    return InvalidArgument(StrCat("values are nested deeper than ", kMaxNesting, " levels"));
  }
  return Value(std::make_shared<const Callable>(std::move(method)));
}

// Returns a method, or an attribute of a loop or namespace; undefined if there is none.
Result<Value> BuiltinAttribute(const Value& object, const MarkedText& text, Environment& env) {
  const std::string_view name = text.bytes();
  if (HasMethod(object, name)) return Method(object, name, env);
  if (IsUnsupportedPythonAttribute(object, name)) {
    return Unsupported(
        StrCat("attribute ", Quoted(name), " of ", object.KindName(), " is not supported"));
  }
  if (object.is(Value::Kind::kLoop)) return LoopAttribute(object, text, env);
  if (object.is(Value::Kind::kNamespace)) {
    const Value* value = object.ns().Find(name);
    if (value != nullptr) return *value;
  }
  if (object.IsList() && object.list().is_group) {
    if (name == "grouper") return object.items()[0];
    if (name == "list") return object.items()[1];
  }
  return Value::MissingIn(object, text);
}

Result<Value> TextItem(const MarkedText& text, std::int64_t index, Environment& env) {
  KVCACHE_RETURN_IF_ERROR(env.budget.Spend(text.size() + Budget::kItem));
  KVCACHE_RETURN_IF_ERROR(env.budget.Fits(text.size() * sizeof(std::size_t)));
  const std::vector<std::size_t> at = CharacterOffsets(text.bytes());
  const auto count = static_cast<std::int64_t>(at.size()) - 1;
  if (index < 0) index += count;
  if (index < 0 || index >= count) {
    return Value::Missing(
        StrCat("index ", index, " is out of range for a string of ", count, " characters"));
  }
  const auto i = static_cast<std::size_t>(index);
  return MakeText(text.Substring(at[i], at[i + 1]), env.budget);
}

Value ListItem(const std::vector<Value>& items, std::int64_t index) {
  const auto count = static_cast<std::int64_t>(items.size());
  const std::int64_t at = index < 0 ? index + count : index;
  if (at >= 0 && at < count) return items[static_cast<std::size_t>(at)];
  return Value::Missing(StrCat("index ", index, " is out of range for a list of ", count));
}

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t step = 1;
};

// Python's slice.indices for a sequence of `length`.
Result<Range> SliceIndices(const Value& begin, const Value& end, const Value& step,
                           std::int64_t length) {
  const auto given = [](const Value& value) { return !value.IsUndefined() && !value.IsNone(); };
  Range range;
  range.step = given(step) ? step.integer() : 1;
  if (range.step == 0) return InvalidArgument("the slice step is 0; must be another integer");
  const std::int64_t lowest = range.step > 0 ? 0 : -1;
  const std::int64_t highest = range.step > 0 ? length : length - 1;
  const auto clamp = [&](const Value& value, std::int64_t otherwise) {
    if (!given(value)) return otherwise;
    std::int64_t at = value.integer();
    if (at < 0) at = at < -length ? lowest : at + length;
    return std::clamp(at, lowest, std::max(lowest, highest));
  };
  range.begin = clamp(begin, range.step > 0 ? lowest : highest);
  range.end = clamp(end, range.step > 0 ? highest : lowest);
  return range;
}

// Returns the indices of the range, in order.
std::vector<std::size_t> SelectedIndices(const Range& range) {
  std::vector<std::size_t> picked;
  std::int64_t at = range.begin;
  while (range.step > 0 ? at < range.end : at > range.end) {
    picked.push_back(static_cast<std::size_t>(at));
    if (range.step > 0 ? range.step > range.end - at : range.step < range.end - at) break;
    at += range.step;
  }
  return picked;
}

Result<Value> SliceText(const MarkedText& text, const Value& begin, const Value& end,
                        const Value& step, Environment& env) {
  KVCACHE_RETURN_IF_ERROR(env.budget.Spend(2 * text.size()));
  KVCACHE_RETURN_IF_ERROR(env.budget.Fits(text.size() * sizeof(std::size_t)));
  const std::vector<std::size_t> at = CharacterOffsets(text.bytes());
  KVCACHE_ASSIGN_OR_RETURN(
      const Range range, SliceIndices(begin, end, step, static_cast<std::int64_t>(at.size()) - 1));
  if (range.step == 1) {
    const auto first = static_cast<std::size_t>(range.begin);
    const auto last = static_cast<std::size_t>(std::max(range.begin, range.end));
    return MakeText(text.Substring(at[first], at[last]), env.budget);
  }
  MarkedText out;
  for (const std::size_t i : SelectedIndices(range)) out.Append(text, at[i], at[i + 1]);
  return MakeText(std::move(out), env.budget);
}

}  // namespace

bool IsBuiltinName(const Value& object, std::string_view name) {
  return HasMethod(object, name) || IsUnsupportedPythonAttribute(object, name);
}

Result<Value> GetAttribute(const Value& object, const MarkedText& name, Environment& env) {
  if (object.IsUndefined()) return InvalidArgument(object.why());
  KVCACHE_ASSIGN_OR_RETURN(Value own, BuiltinAttribute(object, name, env));
  if (!own.IsUndefined() || !object.IsDict()) return own;
  const Value* item = object.dict().Find(name.bytes());
  return item != nullptr ? *item : own;
}

Result<Value> GetItem(const Value& object, const Value& key, Environment& env) {
  if (object.IsUndefined()) return InvalidArgument(object.why());
  if (object.IsDict()) {
    const auto item = object.dict().FindKey(key, env.budget);
    const bool is_no_key = item.status().code() == StatusCode::kInvalidArgument;
    if (!item.ok() && !is_no_key) return item.status();
    if (item.ok() && *item != nullptr) return **item;
  }
  if (key.IsInteger()) {
    if (object.IsList()) return ListItem(object.items(), key.integer());
    if (object.IsText()) return TextItem(object.text(), key.integer(), env);
  }
  if (key.IsText()) return BuiltinAttribute(object, key.text(), env);
  return Value::Missing(StrCat(object.KindName(), " has no item for this key, ", key.KindName()));
}

Result<Value> GetSlice(const Value& object, const Value& begin, const Value& end, const Value& step,
                       Environment& env) {
  if (object.IsUndefined()) return InvalidArgument(object.why());
  for (const Value* value : {&begin, &end, &step}) {
    if (!value->IsUndefined() && !value->IsNone() && !value->IsInteger()) {
      return Value::Missing(StrCat("a slice bound is ", value->KindName(), "; must be an integer"));
    }
  }
  if (object.IsText()) return SliceText(object.text(), begin, end, step, env);
  if (!object.IsList()) {
    return Value::Missing(StrCat(object.KindName(), " cannot be sliced"));
  }
  KVCACHE_ASSIGN_OR_RETURN(
      const Range range,
      SliceIndices(begin, end, step, static_cast<std::int64_t>(object.items().size())));
  const std::vector<Value>& from = object.items();
  std::vector<Value> items;
  if (range.step == 1) {
    const auto last = std::max(range.begin, range.end);
    items.assign(from.begin() + range.begin, from.begin() + last);
  } else {
    for (const std::size_t i : SelectedIndices(range)) items.push_back(from[i]);
  }
  return MakeList(std::move(items), env.budget, object.list().kind);
}

}  // namespace kvcache::jinja
