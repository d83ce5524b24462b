#include "chat_template/value/generator.h"

#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "chat_template/value/environment.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {
namespace {

class ListItems final : public Generator {
 public:
  explicit ListItems(std::shared_ptr<const List> list)
      : Generator(list->nesting), list_(std::move(list)) {}

  Result<std::optional<Value>> Next(Environment& env) override {
    (void)env;
    if (at_ == list_->items.size()) return std::optional<Value>();
    return std::optional<Value>(list_->items[at_++]);
  }

 private:
  const std::shared_ptr<const List> list_;
  std::size_t at_ = 0;
};

class DictKeys final : public Generator {
 public:
  explicit DictKeys(Value dict) : Generator(dict.Nesting()), dict_(std::move(dict)) {}

  Result<std::optional<Value>> Next(Environment& env) override {
    (void)env;
    if (at_ == dict_.dict().size()) return std::optional<Value>();
    return std::optional<Value>(dict_.dict().items()[at_++].first);
  }

 private:
  const Value dict_;
  std::size_t at_ = 0;
};

class Characters final : public Generator {
 public:
  explicit Characters(MarkedText text) : Generator(1), text_(std::move(text)) {}

  Result<std::optional<Value>> Next(Environment& env) override {
    if (at_ == text_.size()) return std::optional<Value>();
    const std::size_t begin = at_;
    at_ += CharacterBytes(text_.bytes(), at_);
    KVCACHE_ASSIGN_OR_RETURN(Value character, MakeText(text_.Substring(begin, at_), env.budget));
    return std::optional<Value>(std::move(character));
  }

 private:
  const MarkedText text_;
  std::size_t at_ = 0;
};

}  // namespace

std::shared_ptr<Generator> GeneratorOf(std::shared_ptr<const List> list) {
  return std::make_shared<ListItems>(std::move(list));
}

Result<std::shared_ptr<Generator>> ItemsOf(const Value& value, Budget& budget) {
  KVCACHE_RETURN_IF_ERROR(budget.Spend(Budget::kStep));
  switch (value.kind()) {
    case Value::Kind::kUndefined: return GeneratorOf(std::make_shared<const List>());
    case Value::Kind::kList: return GeneratorOf(value.shared_list());
    case Value::Kind::kDict: return std::shared_ptr<Generator>(std::make_shared<DictKeys>(value));
    case Value::Kind::kText:
      return std::shared_ptr<Generator>(std::make_shared<Characters>(value.text()));
    case Value::Kind::kGenerator: return value.shared_generator();
    default: break;
  }
  return InvalidArgument(StrCat(value.KindName(), " is not iterable"));
}

Result<std::vector<Value>> Iterate(const Value& value, Environment& env) {
  if (value.IsList()) {
    KVCACHE_RETURN_IF_ERROR(env.budget.Spend(value.items().size() * Budget::kStep));
    return value.items();
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::shared_ptr<Generator> source, ItemsOf(value, env.budget));
  std::vector<Value> items;
  MemoryCharge charge;
  for (;;) {
    KVCACHE_RETURN_IF_ERROR(env.budget.Spend(Budget::kStep));
    KVCACHE_ASSIGN_OR_RETURN(std::optional<Value> item, source->Next(env));
    if (!item) return items;
    items.push_back(std::move(*item));
    KVCACHE_RETURN_IF_ERROR(charge.Hold(items.size() * sizeof(Value), env.budget));
  }
}

Result<bool> Loop::Advance(Environment& env) {
  std::optional<Value> next = std::exchange(next_, std::nullopt);
  if (!next) {
    KVCACHE_ASSIGN_OR_RETURN(next, items_->Next(env));
  }
  if (!next) return false;
  if (index_ > 0) previous_ = std::move(current_);
  current_ = std::move(*next);
  ++index_;
  return true;
}

Result<std::optional<Value>> Loop::Peek(Environment& env) {
  if (!next_) {
    KVCACHE_ASSIGN_OR_RETURN(next_, items_->Next(env));
  }
  return next_;
}

Result<std::int64_t> Loop::Length(Environment& env) {
  if (length_ < 0) {
    const std::int64_t before = index_ + (next_ ? 1 : 0);
    KVCACHE_ASSIGN_OR_RETURN(std::vector<Value> rest, Iterate(Value(items_), env));
    length_ = before + static_cast<std::int64_t>(rest.size());
    KVCACHE_ASSIGN_OR_RETURN(const Value list, MakeList(std::move(rest), env.budget));
    items_ = GeneratorOf(list.shared_list());
  }
  return length_;
}

}  // namespace kvcache::jinja
