// Tests: "value is test(…)".
#include <cmath>

#include "base/strings.h"
#include "chat_template/builtins/builtins.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {
namespace {

struct TestCall {
  const Value& value;
  const Value* other;  // the argument; null for tests without one
  Environment& env;

  Budget& budget() const { return env.budget; }
};
using Call = const TestCall&;

Result<bool> Divides(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const Value rest, Operate("%", call.value, *call.other, call.budget()));
  return rest.IsNumber() && rest.number() == 0.0;
}

Result<bool> Same(Call call) {
  const Value& a = call.value;
  const Value& b = *call.other;
  if (a.kind() != b.kind()) return false;
  if (a.IsList()) return &a.list() == &b.list();
  if (a.IsDict()) return &a.dict() == &b.dict();
  return Equal(a, b, call.budget());
}

Result<bool> IsCase(Call call, LetterCase expected) {
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOf(call.value, call.budget()));
  return IsAll(expected, text.bytes());
}

Result<bool> Not(Result<bool> result) {
  if (!result.ok()) return result;
  return !*result;
}

bool HasItems(const Value& value) {
  return value.IsText() || value.IsList() || value.IsDict() || value.IsUndefined();
}

bool IsBool(const Value& value, bool truth) {
  return value.is(Value::Kind::kBool) && value.boolean() == truth;
}

Result<bool> IsEqual(Call call) {
  return Equal(call.value, *call.other, call.budget());
}
Result<bool> IsUnequal(Call call) {
  return Not(IsEqual(call));
}
Result<bool> IsLess(Call call) {
  return Less(call.value, *call.other, call.budget());
}
Result<bool> IsMore(Call call) {
  return Less(*call.other, call.value, call.budget());
}
// Not the negation of IsMore: NaN is neither less, equal nor more, and kinds without order fail.
Result<bool> IsAtMost(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const bool less, IsLess(call));
  return less ? Result<bool>(true) : IsEqual(call);
}
Result<bool> IsAtLeast(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const bool more, IsMore(call));
  return more ? Result<bool>(true) : IsEqual(call);
}

// Tests of what a value is.
struct ValueTest {
  std::string_view name;
  bool (*holds)(const Value& value);
};

using Kind = Value::Kind;

const ValueTest kValueTests[] = {
    {"defined", [](const Value& value) { return !value.IsUndefined(); }},
    {"undefined", [](const Value& value) { return value.IsUndefined(); }},
    {"none", [](const Value& value) { return value.IsNone(); }},
    {"string", [](const Value& value) { return value.IsText(); }},
    {"mapping", [](const Value& value) { return value.IsDict(); }},
    {"iterable",
     [](const Value& value) {
       return HasItems(value) || value.is(Kind::kLoop) || value.is(Kind::kGenerator);
     }},
    {"sequence", HasItems},
    {"number", [](const Value& value) { return value.IsNumber(); }},
    {"integer", [](const Value& value) { return value.is(Kind::kInt); }},
    {"float", [](const Value& value) { return value.is(Kind::kFloat); }},
    {"boolean", [](const Value& value) { return value.is(Kind::kBool); }},
    {"true", [](const Value& value) { return IsBool(value, true); }},
    {"false", [](const Value& value) { return IsBool(value, false); }},
    // In Jinja undefined is callable, but the call fails.
    {"callable",
     [](const Value& value) { return value.is(Kind::kCallable) || value.IsUndefined(); }},
};

enum class Takes : std::uint8_t { kNothing, kOne };

struct Test {
  std::string_view name;
  Takes takes;
  Result<bool> (*run)(Call call);
};

Result<bool> IsEven(Call call) {
  const Value two(std::int64_t{2});
  return Divides({call.value, &two, call.env});
}

const Test kTests[] = {
    {"odd", Takes::kNothing, [](Call call) { return Not(IsEven(call)); }},
    {"even", Takes::kNothing, IsEven},
    {"divisibleby", Takes::kOne, Divides},
    {"upper", Takes::kNothing, [](Call call) { return IsCase(call, LetterCase::kUpper); }},
    {"lower", Takes::kNothing, [](Call call) { return IsCase(call, LetterCase::kLower); }},
    {"in", Takes::kOne, [](Call call) { return Contains(*call.other, call.value, call.env); }},
    {"sameas", Takes::kOne, Same},
    {"equalto", Takes::kOne, IsEqual},
    {"eq", Takes::kOne, IsEqual},
    {"==", Takes::kOne, IsEqual},
    {"ne", Takes::kOne, IsUnequal},
    {"!=", Takes::kOne, IsUnequal},
    {"lt", Takes::kOne, IsLess},
    {"lessthan", Takes::kOne, IsLess},
    {"<", Takes::kOne, IsLess},
    {"le", Takes::kOne, IsAtMost},
    {"<=", Takes::kOne, IsAtMost},
    {"gt", Takes::kOne, IsMore},
    {"greaterthan", Takes::kOne, IsMore},
    {">", Takes::kOne, IsMore},
    {"ge", Takes::kOne, IsAtLeast},
    {">=", Takes::kOne, IsAtLeast},
};

}  // namespace

Result<bool> ApplyTest(std::string_view name, const Value& input, const Arguments& arguments,
                       Environment& env) {
  KVCACHE_RETURN_IF_ERROR(env.budget.Spend(Budget::kStep));
  const auto check_count = [&](std::size_t count) {
    if (arguments.positional.size() == count && arguments.named.empty()) return Status::Ok();
    return InvalidArgument(StrCat("test '", name, "' has ",
                                  arguments.positional.size() + arguments.named.size(),
                                  " arguments; must have ", count));
  };
  for (const ValueTest& test : kValueTests) {
    if (test.name != name) continue;
    KVCACHE_RETURN_IF_ERROR(check_count(0));
    return test.holds(input);
  }
  for (const Test& test : kTests) {
    if (test.name != name) continue;
    const std::size_t count = test.takes == Takes::kOne ? 1 : 0;
    KVCACHE_RETURN_IF_ERROR(check_count(count));
    return test.run({input, count == 1 ? arguments.positional.data() : nullptr, env});
  }
  return NotSupported("test", name);
}

}  // namespace kvcache::jinja
