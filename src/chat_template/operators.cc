// Operators: arithmetic, concatenation and repetition.
#include <cmath>

#include "base/errors.h"
#include "base/strings.h"
#include "chat_template/builtins/builtins.h"

namespace kvcache::jinja {
namespace {

Status TooLarge() {
  return Unsupported("an integer of more than 64 bits is not supported");
}

template <typename Operation>
Result<Value> Checked(std::int64_t a, std::int64_t b, Operation overflows) {
  std::int64_t result = 0;
  if (overflows(a, b, &result)) return TooLarge();
  return Value(result);
}

bool AddOverflows(std::int64_t a, std::int64_t b, std::int64_t* sum) {
  return __builtin_add_overflow(a, b, sum);
}
bool SubtractOverflows(std::int64_t a, std::int64_t b, std::int64_t* difference) {
  return __builtin_sub_overflow(a, b, difference);
}
bool MultiplyOverflows(std::int64_t a, std::int64_t b, std::int64_t* product) {
  return __builtin_mul_overflow(a, b, product);
}

std::int64_t FloorDivide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Result<Value> IntegerPower(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  bool overflow = false;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) overflow |= __builtin_mul_overflow(result, base, &result);
    if (overflow) return TooLarge();
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return TooLarge();
  }
  return Value(result);
}

Result<Value> Integers(std::string_view name, std::int64_t a, std::int64_t b) {
  if (name == "+") return Checked(a, b, AddOverflows);
  if (name == "-") return Checked(a, b, SubtractOverflows);
  if (name == "*") return Checked(a, b, MultiplyOverflows);
  if (name == "**" && b >= 0) return IntegerPower(a, b);
  if (name == "**") return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
  if (b == 0) return InvalidArgument("division by zero");
  if (name == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {
    return name == "%" ? Value(std::int64_t{0}) : Checked(0, a, SubtractOverflows);
  }
  const std::int64_t quotient = FloorDivide(a, b);
  return Value(name == "//" ? quotient : a - quotient * b);
}

Result<Value> Floats(std::string_view name, double a, double b) {
  if (name == "+") return Value(a + b);
  if (name == "-") return Value(a - b);
  if (name == "*") return Value(a * b);
  if (name == "**") return Value(std::pow(a, b));
  if (b == 0.0) return InvalidArgument("division by zero");
  if (name == "/") return Value(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0.0 && (remainder < 0.0) != (b < 0.0)) remainder += b;
  if (name == "%") return Value(remainder);
  return Value(std::floor(std::round((a - remainder) / b)));
}

Result<Value> Repeat(const Value& value, std::int64_t times, Budget& budget) {
  const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(times, 0));
  const std::uint64_t one =
      value.IsText() ? value.text().Footprint() : value.items().size() * Budget::kItem;
  const bool is_huge = one != 0 && count > (std::uint64_t{1} << 40) / one;
  KVCACHE_RETURN_IF_ERROR(budget.Fits(is_huge ? ~std::uint64_t{0} : one * count));
  KVCACHE_RETURN_IF_ERROR(budget.Spend(one * count));
  if (one == 0) return value;
  if (value.IsText()) {
    MarkedText text;
    for (std::uint64_t i = 0; i < count; ++i) text.Append(value.text());
    return Value(std::move(text));
  }
  std::vector<Value> items;
  for (std::uint64_t i = 0; i < count; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return MakeList(std::move(items), budget, value.list().kind);
}

Result<Value> Add(const Value& a, const Value& b, Budget& budget) {
  if (a.IsText()) {
    MarkedText text = a.text();
    KVCACHE_RETURN_IF_ERROR(text.Extend(b.text(), budget));
    return Value(std::move(text));
  }
  std::vector<Value> items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return MakeList(std::move(items), budget, a.list().kind);
}

}  // namespace

Result<Value> Operate(std::string_view name, const Value& a, const Value& b, Budget& budget) {
  if (name == "%" && a.IsText()) return FormatPercent(a.text(), b, budget);
  if (a.IsUndefined()) return InvalidArgument(a.why());
  if (b.IsUndefined()) return InvalidArgument(b.why());
  if (a.IsInteger() && b.IsInteger()) return Integers(name, a.integer(), b.integer());
  if (a.IsNumber() && b.IsNumber()) return Floats(name, a.number(), b.number());
  const auto repeats = [](const Value& value) { return value.IsText() || value.IsList(); };
  if (name == "*" && repeats(a) && b.IsInteger()) return Repeat(a, b.integer(), budget);
  if (name == "*" && repeats(b) && a.IsInteger()) return Repeat(b, a.integer(), budget);
  const bool both_lists = a.IsList() && b.IsList() && a.list().kind == b.list().kind;
  if (name == "+" && ((a.IsText() && b.IsText()) || both_lists)) return Add(a, b, budget);
  return InvalidArgument(
      StrCat("operator '", name, "' does not apply to ", a.KindName(), " and ", b.KindName()));
}

}  // namespace kvcache::jinja
