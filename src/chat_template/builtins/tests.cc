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
  Budget& budget;
};
using Call = const TestCall&;

Result<bool> Divides(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const Value rest, Operate("%", call.value, *call.other, call.budget));
  return rest.IsNumber() && rest.number() == 0.0;
}

Result<bool> Same(Call call) {
  const Value& a = call.value;
  const Value& b = *call.other;
  if (a.kind() != b.kind()) return false;
  if (a.IsList()) return &a.list() == &b.list();
  if (a.IsDict()) return &a.dict() == &b.dict();
  return Equal(a, b, call.budget);
}

Result<bool> IsCase(Call call, LetterCase expected) {
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, TextOf(call.value, call.budget));
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

Result<bool> IsDefined(Call call) {
  return !call.value.IsUndefined();
}
Result<bool> IsEqual(Call call) {
  return Equal(call.value, *call.other, call.budget);
}
Result<bool> IsUnequal(Call call) {
  return Not(IsEqual(call));
}
Result<bool> IsLess(Call call) {
  return Less(call.value, *call.other, call.budget);
}
Result<bool> IsMore(Call call) {
  return Less(*call.other, call.value, call.budget);
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

enum class Takes : std::uint8_t { kNothing, kOne };

struct Test {
  std::string_view name;
  Takes takes;
  Result<bool> (*run)(Call call);
};

const Test kTests[] = {
    {"defined", Takes::kNothing, IsDefined},
    {"undefined", Takes::kNothing, [](Call call) { return Not(IsDefined(call)); }},
    {"none", Takes::kNothing, [](Call call) -> Result<bool> { return call.value.IsNone(); }},
    {"string", Takes::kNothing, [](Call call) -> Result<bool> { return call.value.IsText(); }},
    {"mapping", Takes::kNothing, [](Call call) -> Result<bool> { return call.value.IsDict(); }},
    {"iterable", Takes::kNothing,
     [](Call call) -> Result<bool> {
       return HasItems(call.value) || call.value.is(Value::Kind::kLoop);
     }},
    {"sequence", Takes::kNothing, [](Call call) -> Result<bool> { return HasItems(call.value); }},
    {"number", Takes::kNothing, [](Call call) -> Result<bool> { return call.value.IsNumber(); }},
    {"integer", Takes::kNothing,
     [](Call call) -> Result<bool> { return call.value.is(Value::Kind::kInt); }},
    {"float", Takes::kNothing,
     [](Call call) -> Result<bool> { return call.value.is(Value::Kind::kFloat); }},
    {"boolean", Takes::kNothing,
     [](Call call) -> Result<bool> { return call.value.is(Value::Kind::kBool); }},
    {"true", Takes::kNothing, [](Call call) -> Result<bool> { return IsBool(call.value, true); }},
    {"false", Takes::kNothing, [](Call call) -> Result<bool> { return IsBool(call.value, false); }},
    {"callable", Takes::kNothing,
     [](Call call) -> Result<bool> {  // in Jinja undefined is callable, but the call fails
       return call.value.is(Value::Kind::kCallable) || call.value.IsUndefined();
     }},
    {"odd", Takes::kNothing,
     [](Call call) -> Result<bool> {
       const Value two(std::int64_t{2});
       return Not(Divides({call.value, &two, call.budget}));
     }},
    {"even", Takes::kNothing,
     [](Call call) -> Result<bool> {
       const Value two(std::int64_t{2});
       return Divides({call.value, &two, call.budget});
     }},
    {"divisibleby", Takes::kOne, Divides},
    {"upper", Takes::kNothing, [](Call call) { return IsCase(call, LetterCase::kUpper); }},
    {"lower", Takes::kNothing, [](Call call) { return IsCase(call, LetterCase::kLower); }},
    {"in", Takes::kOne, [](Call call) { return Contains(*call.other, call.value, call.budget); }},
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
  for (const Test& test : kTests) {
    if (test.name != name) continue;
    const std::size_t count = test.takes == Takes::kOne ? 1 : 0;
    if (arguments.positional.size() != count || !arguments.named.empty()) {
      return InvalidArgument(StrCat("test '", name, "' has ",
                                    arguments.positional.size() + arguments.named.size(),
                                    " arguments; must have ", count));
    }
    return test.run({input, count == 1 ? arguments.positional.data() : nullptr, env.budget});
  }
  return NotSupported("test", name);
}

}  // namespace kvcache::jinja
