// map, select, reject, selectattr, rejectattr and attr: filters and tests on each item, when it is
// asked for.
#include <algorithm>

#include "base/strings.h"
#include "chat_template/builtins/filters.h"

namespace kvcache::jinja {
namespace {

using Call = const FilterCall&;

// Returns the arguments without the first `count`.
Arguments Rest(const Arguments& arguments, std::size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

// Returns the items of `call.input`. Jinja tests the input's truth first, so 0 is not an error.
Result<std::shared_ptr<Generator>> Source(Call call) {
  return ItemsOf(call.input.IsTruthy() ? call.input : Value(), call.budget());
}

Result<Value> MakeGenerator(std::shared_ptr<Generator> generator, Budget& budget) {
  KVCACHE_RETURN_IF_ERROR(budget.Spend(2 * Budget::kItem));
  if (generator->nesting() > kMaxNesting) {
    return InvalidArgument(StrCat("values are nested deeper than ", kMaxNesting, " levels"));
  }
  return Value(std::move(generator));
}

int NestingOf(const Generator& source, const Arguments& arguments) {
  int nesting = source.nesting();
  for (const Value& value : arguments.positional) nesting = std::max(nesting, value.Nesting());
  for (const auto& [name, value] : arguments.named) nesting = std::max(nesting, value.Nesting());
  return 1 + nesting;
}

// map("filter", …), or map(attribute="a.b", default=…).
class Mapped final : public Generator {
 public:
  Mapped(std::shared_ptr<Generator> source, Arguments arguments)
      : Generator(NestingOf(*source, arguments)),
        source_(std::move(source)),
        arguments_(std::move(arguments)) {}

  Result<std::optional<Value>> Next(Environment& env) override {
    KVCACHE_RETURN_IF_ERROR(env.budget.Spend(Budget::kStep));
    KVCACHE_ASSIGN_OR_RETURN(const std::optional<Value> item, source_->Next(env));
    if (!item) return std::optional<Value>();
    KVCACHE_ASSIGN_OR_RETURN(Value value, Map(*item, env));
    return std::optional<Value>(std::move(value));
  }

 private:
  Result<Value> Map(const Value& item, Environment& env) const {
    if (!arguments_.positional.empty()) {
      KVCACHE_ASSIGN_OR_RETURN(const MarkedText name,
                               TextOr(arguments_.positional.data(), "", "name"));
      return ApplyFilter(name.bytes(), item, Rest(arguments_, 1), env);
    }
    KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(arguments_, {"attribute", "default"}));
    KVCACHE_ASSIGN_OR_RETURN(Value value, AttributeOf(item, given[0], env));
    return value.IsUndefined() && given[1] != nullptr ? *given[1] : value;
  }

  const std::shared_ptr<Generator> source_;
  const Arguments arguments_;
};

Result<Value> Map(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(std::shared_ptr<Generator> source, Source(call));
  if (call.arguments.positional.empty() && call.arguments.named.empty()) {
    return InvalidArgument("'map' has no arguments; must have a filter or an attribute");
  }
  return MakeGenerator(std::make_shared<Mapped>(std::move(source), call.arguments), call.budget());
}

enum class Keep : std::uint8_t { kPassing, kFailing };
enum class Subject : std::uint8_t { kItem, kAttribute };

// The items whose value passes the test that the arguments name, or, without a test, is true.
class Picked final : public Generator {
 public:
  Picked(std::shared_ptr<Generator> source, Arguments arguments, Subject subject, Keep keep)
      : Generator(NestingOf(*source, arguments)),
        source_(std::move(source)),
        arguments_(std::move(arguments)),
        skipped_(subject == Subject::kAttribute ? 1 : 0),
        keep_(keep) {}

  Result<std::optional<Value>> Next(Environment& env) override {
    for (;;) {
      KVCACHE_RETURN_IF_ERROR(env.budget.Spend(Budget::kStep));
      KVCACHE_ASSIGN_OR_RETURN(std::optional<Value> item, source_->Next(env));
      if (!item) return item;
      KVCACHE_ASSIGN_OR_RETURN(const bool passes, Passes(*item, env));
      if (passes == (keep_ == Keep::kPassing)) return item;
    }
  }

 private:
  Result<bool> Passes(const Value& item, Environment& env) const {
    const std::vector<Value>& given = arguments_.positional;
    const Value* attribute = skipped_ == 1 ? given.data() : nullptr;
    KVCACHE_ASSIGN_OR_RETURN(const Value value, AttributeOf(item, attribute, env));
    if (given.size() <= skipped_) return value.IsTruthy();
    KVCACHE_ASSIGN_OR_RETURN(const MarkedText name, TextOr(&given[skipped_], "", "name"));
    return ApplyTest(name.bytes(), value, Rest(arguments_, skipped_ + 1), env);
  }

  const std::shared_ptr<Generator> source_;
  const Arguments arguments_;
  const std::size_t skipped_;  // arguments before the test
  const Keep keep_;
};

Result<Value> Pick(Call call, Subject subject, Keep keep) {
  KVCACHE_ASSIGN_OR_RETURN(std::shared_ptr<Generator> source, Source(call));
  if (subject == Subject::kAttribute && call.arguments.positional.empty()) {
    return InvalidArgument("the attribute's name is missing");
  }
  return MakeGenerator(std::make_shared<Picked>(std::move(source), call.arguments, subject, keep),
                       call.budget());
}

Result<Value> Attr(Call call) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(call.arguments, {"name"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText name, TextOr(given[0], "", "name"));
  if (call.input.IsDict() && !HasMethod(call.input, name.bytes())) {
    return Value::Missing(StrCat("a dict has no attribute ", Quoted(name.bytes())));
  }
  return GetAttribute(call.input, name, call.env);
}

constexpr Filter kFilters[] = {
    {"map", Map},
    {"select", [](Call call) { return Pick(call, Subject::kItem, Keep::kPassing); }},
    {"reject", [](Call call) { return Pick(call, Subject::kItem, Keep::kFailing); }},
    {"selectattr", [](Call call) { return Pick(call, Subject::kAttribute, Keep::kPassing); }},
    {"rejectattr", [](Call call) { return Pick(call, Subject::kAttribute, Keep::kFailing); }},
    {"attr", Attr},
};

}  // namespace

std::span<const Filter> PickFilters() {
  return kFilters;
}

}  // namespace kvcache::jinja
