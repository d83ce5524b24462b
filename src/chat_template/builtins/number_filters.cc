// Filters that return numbers, and `default`.
#include <charconv>
#include <cmath>
#include <optional>

#include "base/parse_number.h"
#include "base/strings.h"
#include "chat_template/builtins/filters.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {
namespace {

using Call = const FilterCall&;

// The number's text in what Python's int() and float() take: without spaces at its ends and without
// a plus.
std::string_view NumberText(std::string_view text) {
  const TextRange left = StripRange(text, Sides::kBoth, StripSet::kSpace);
  text = text.substr(left.begin, left.end - left.begin);
  if (text.starts_with('+')) text.remove_prefix(1);
  return text;
}

std::optional<std::int64_t> Truncated(double number) {
  if (!(std::abs(number) < 9.2e18)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

std::optional<std::int64_t> IntegerOf(const Value& value, int base) {
  if (value.IsInteger()) return value.integer();
  if (value.is(Value::Kind::kFloat)) return Truncated(value.number());
  if (!value.IsText()) return std::nullopt;
  const std::string_view text = NumberText(value.bytes());
  if (const auto whole = ParseNumber<std::int64_t>(text, base)) return whole;
  const auto number = ParseNumber<double>(text);
  return number ? Truncated(*number) : std::nullopt;
}

Result<Value> ToInteger(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"default", "base"}));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t base, IntegerOr(given[1], 10, "base"));
  if (base < 2 || base > 36) {
    return InvalidArgument(StrCat("argument 'base' is ", base, "; must be 2 to 36"));
  }
  if (call.input.IsUndefined()) return InvalidArgument(call.input.why());
  const auto number = IntegerOf(call.input, static_cast<int>(base));
  if (number) return Value(*number);
  return given[0] == nullptr ? Value(std::int64_t{0}) : *given[0];
}

Result<Value> ToFloat(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"default"}));
  if (call.input.IsUndefined()) return InvalidArgument(call.input.why());
  if (call.input.IsNumber()) return Value(call.input.number());
  const auto number =
      call.input.IsText() ? ParseNumber<double>(NumberText(call.input.bytes())) : std::nullopt;
  if (number) return Value(*number);
  return given[0] == nullptr ? Value(0.0) : *given[0];
}

Result<Value> Absolute(Call call) {
  if (call.input.IsInteger()) {
    const std::int64_t number = call.input.integer();
    return number < 0 ? Operate("*", call.input, Value(std::int64_t{-1}), call.budget())
                      : Value(number);
  }
  if (call.input.is(Value::Kind::kFloat)) return Value(std::abs(call.input.number()));
  return InvalidArgument(
      StrCat("the input of 'abs' is ", call.input.KindName(), "; must be a number"));
}

// Rounds as Python does: half to even, on the decimal digits.
double RoundHalfEven(double number, int digits) {
  char text[400];
  if (!std::isfinite(number) || std::abs(number) > 1e300) return number;
  if (digits < 0) {
    const double unit = std::pow(10.0, -digits);
    return std::nearbyint(number / unit) * unit;
  }
  const auto end = std::to_chars(text, text + sizeof(text), number, std::chars_format::fixed,
                                 std::min(digits, 60));
  double rounded = number;
  (void)std::from_chars(text, end.ptr, rounded);
  return rounded;
}

Result<Value> Round(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"precision", "method"}));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t digits, IntegerOr(given[0], 0, "precision"));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText method, TextOr(given[1], "common", "method"));
  if (!call.input.IsNumber()) {
    return InvalidArgument(
        StrCat("the input of 'round' is ", call.input.KindName(), "; must be a number"));
  }
  if (digits < -300 || digits > 300) {
    return InvalidArgument(StrCat("argument 'precision' is ", digits, "; must be -300 to 300"));
  }
  const double number = call.input.number();
  const double unit = std::pow(10.0, static_cast<double>(digits));
  if (method.bytes() == "common") {
    // Integers stay integers, as in Python.
    if (call.input.IsInteger() && digits >= 0) return Value(call.input.integer());
    const double rounded = RoundHalfEven(number, static_cast<int>(digits));
    return call.input.IsInteger() ? Value(static_cast<std::int64_t>(rounded)) : Value(rounded);
  }
  if (method.bytes() == "ceil") return Value(std::ceil(number * unit) / unit);
  if (method.bytes() == "floor") return Value(std::floor(number * unit) / unit);
  return InvalidArgument(StrCat("argument 'method' is ", Quoted(method.bytes()),
                                "; must be 'common', 'ceil' or 'floor'"));
}

Result<Value> Length(Call call) {
  KVCACHE_RETURN_IF_ERROR(Bind(call.arguments, {}).status());
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t length, LengthOf(call.input, call.env));
  return Value(length);
}

Result<Value> Default(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"default_value", "boolean"}));
  const bool missing =
      call.input.IsUndefined() || (BoolOr(given[1], false) && !call.input.IsTruthy());
  if (!missing) return call.input;
  return given[0] == nullptr ? Value::Literal("") : *given[0];
}

Result<Value> Sum(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"attribute", "start"}));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(call.input, call.env));
  Value sum = given[1] == nullptr ? Value(std::int64_t{0}) : *given[1];
  if (sum.IsText()) return InvalidArgument("argument 'start' is a string; use 'join' for strings");
  for (const Value& item : items) {
    KVCACHE_ASSIGN_OR_RETURN(const Value part, AttributeOf(item, given[0], call.env));
    KVCACHE_ASSIGN_OR_RETURN(sum, Operate("+", sum, part, call.budget()));
  }
  return sum;
}

constexpr Filter kFilters[] = {
    {"int", ToInteger}, {"float", ToFloat},   {"abs", Absolute},
    {"round", Round},   {"length", Length},   {"count", Length},
    {"sum", Sum},       {"default", Default}, {"d", Default},
};

}  // namespace

std::span<const Filter> NumberFilters() {
  return kFilters;
}

}  // namespace kvcache::jinja
