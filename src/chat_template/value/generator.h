// A sequence whose items are computed when they are asked for, and only once, as Python's
// generators: the results of map, select, unique and similar filters.
//
// Thread safety: as value.h.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "chat_template/value/value.h"

namespace kvcache::jinja {

struct Environment;

class Generator {
 public:
  explicit Generator(int nesting) : nesting_(nesting) {}
  virtual ~Generator() = default;
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // Returns the next item, or nothing at the end.
  virtual Result<std::optional<Value>> Next(Environment& env) = 0;

  // One more than the deepest value that it can return or that it reads.
  int nesting() const { return nesting_; }

 private:
  const int nesting_;
};

// Returns a generator of the items of a list.
std::shared_ptr<Generator> GeneratorOf(std::shared_ptr<const List> list);

// Returns what a for loop over `value` visits: characters, items or keys; nothing for undefined. A
// generator continues. Errors: other kinds, such as numbers.
Result<std::shared_ptr<Generator>> ItemsOf(const Value& value, Budget& budget);

// Returns the values of ItemsOf, all at once.
Result<std::vector<Value>> Iterate(const Value& value, Environment& env);

// The variable `loop`.
class Loop {
 public:
  // `length`: -1 if it is not known before the items are computed.
  Loop(std::shared_ptr<Generator> items, std::int64_t length)
      : items_(std::move(items)), length_(length) {}

  // Moves to the next item. Returns false at the end.
  Result<bool> Advance(Environment& env);

  // REQUIRES for these: Advance returned true.
  const Value& current() const { return current_; }
  const Value& previous() const { return previous_; }  // undefined at the first item
  std::int64_t index0() const { return index_ - 1; }
  // Returns the item after the current one, or nothing.
  Result<std::optional<Value>> Peek(Environment& env);
  // Computes the items that are left, if the length is not known.
  Result<std::int64_t> Length(Environment& env);

  int nesting() const { return 1 + items_->nesting(); }

 private:
  std::shared_ptr<Generator> items_;
  std::int64_t length_;
  std::int64_t index_ = 0;  // items up to the current one
  Value previous_;
  Value current_;
  std::optional<Value> next_;
};

}  // namespace kvcache::jinja
