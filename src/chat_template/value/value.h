// The values of a chat template: Python's, as far as templates can use them.
//
// Values are immutable except for namespaces, so lists and dicts form no cycles, and their nesting
// is known when they are made (kMaxNesting). Texts carry an origin per byte (marked_text.h);
// equality and order compare the bytes only.
//
// Thread safety: copies share their contents; one thread at a time per rendering.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "chat_template/value/budget.h"
#include "chat_template/value/marked_text.h"
#include "kvcache/status.h"

namespace kvcache::jinja {

class Value;
struct List;
class Dict;
struct Namespace;
struct Callable;
struct Loop;

inline constexpr int kMaxNesting = 100;  // of lists and dicts; deeper JSON is an error

// The value of an undefined name. It prints as nothing; other uses are an error with the message
// `why`.
struct Undefined {
  std::shared_ptr<const std::string> why;
};

class Value {
 public:
  // The order of the variant below.
  enum class Kind : std::uint8_t {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kList,  // tuples too
    kDict,
    kNamespace,
    kCallable,
    kLoop,
  };

  Value() : Value(Undefined{}) {}
  explicit Value(Undefined undefined);
  explicit Value(std::int64_t number);
  explicit Value(double number);
  explicit Value(MarkedText text);
  explicit Value(std::shared_ptr<const List> list);
  explicit Value(std::shared_ptr<const Dict> dict);
  explicit Value(std::shared_ptr<Namespace> space);
  explicit Value(std::shared_ptr<const Callable> callable);
  explicit Value(std::shared_ptr<const Loop> loop);
  // Not inline: a variant's members are long, and every source of the interpreter uses them.
  Value(const Value& other);
  Value(Value&& other) noexcept;
  Value& operator=(const Value& other);
  Value& operator=(Value&& other) noexcept;
  ~Value();

  static Value None();
  static Value Bool(bool value);
  // Returns a text that the template wrote.
  static Value Literal(std::string_view bytes) {
    return Value(MarkedText(bytes, Origin::kTemplate));
  }
  static Value Missing(std::string why) {
    return Value(Undefined{std::make_shared<const std::string>(std::move(why))});
  }

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool IsUndefined() const { return is(Kind::kUndefined); }
  bool IsNone() const { return is(Kind::kNone); }
  bool IsText() const { return is(Kind::kText); }
  bool IsList() const { return is(Kind::kList); }
  bool IsDict() const { return is(Kind::kDict); }
  // Returns whether the value is an int in Python, which includes booleans.
  bool IsInteger() const { return is(Kind::kInt) || is(Kind::kBool); }
  bool IsNumber() const { return IsInteger() || is(Kind::kFloat); }

  // REQUIRES for these: the value has that kind.
  bool boolean() const { return std::get<bool>(data_); }
  std::int64_t integer() const;  // IsInteger()
  double number() const;         // IsNumber()
  const MarkedText& text() const { return *std::get<std::shared_ptr<const MarkedText>>(data_); }
  const std::string& bytes() const { return text().bytes(); }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const std::vector<Value>& items() const;
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& ns() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }
  const Loop& loop() const { return *std::get<std::shared_ptr<const Loop>>(data_); }
  // Returns why the value is undefined: "'x' is undefined".
  std::string why() const;

  bool IsTruthy() const;

  // Returns 0 for values without items, else one more than the deepest item.
  int Nesting() const;

  // Returns "a string", "a list", … for messages.
  std::string_view KindName() const;

 private:
  using Data = std::variant<Undefined, std::monostate, bool, std::int64_t, double,
                            std::shared_ptr<const MarkedText>, std::shared_ptr<const List>,
                            std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                            std::shared_ptr<const Callable>, std::shared_ptr<const Loop>>;
  explicit Value(Data data);

  Data data_;
};

enum class ListKind : std::uint8_t { kList, kTuple };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  int nesting = 1;
};

// A hash table that keeps keys in insertion order.
class Dict {
 public:
  using Item = std::pair<Value, Value>;
  const std::vector<Item>& items() const { return items_; }
  std::size_t size() const { return items_.size(); }

  // Returns nullptr if there is none.
  const Value* Find(std::string_view key) const;
  const Value* FindKey(const std::string& hashed) const;

  // REQUIRES: `hashed` is HashKey of `key`. A later value replaces an earlier one.
  void Set(Value key, const std::string& hashed, Value value);

  int nesting() const { return nesting_; }

 private:
  std::vector<Item> items_;
  std::unordered_map<std::string, std::size_t> index_;  // by HashKey
  int nesting_ = 1;
};

// A mutable set of attributes. Namespaces may form cycles, so the interpreter owns all of them and
// clears them at the end of the rendering.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  Value* Find(std::string_view name);
};

// Returns a list or tuple of `items` and charges their memory. Errors: nested too deep, the budget.
Result<Value> MakeList(std::vector<Value> items, Budget& budget, ListKind kind = ListKind::kList);

// Adds an item to `dict` and charges the memory. Errors: a key that is not hashable, nested too
// deep, the budget.
Status AddItem(Dict& dict, Value key, Value value, Budget& budget);
Value MakeDict(Dict dict);

// Returns `text` as a value and charges its memory.
Result<Value> MakeText(MarkedText text, Budget& budget);

// Returns a string that is equal for equal keys: 1, 1.0 and true are one key. Errors: kinds that
// cannot be keys, such as lists and dicts.
Result<std::string> HashKey(const Value& key, Budget& budget);

// Python's ==. Charges the budget for the bytes and items compared.
Result<bool> Equal(const Value& a, const Value& b, Budget& budget);

// Python's <: numbers, texts, lists. Errors: kinds that have no order between them.
Result<bool> Less(const Value& a, const Value& b, Budget& budget);

// Python's `needle in haystack`.
Result<bool> Contains(const Value& haystack, const Value& needle, Budget& budget);

// Returns the values that a for loop over `value` visits: characters, items or keys; nothing for
// undefined. Errors: other kinds, such as numbers.
Result<std::vector<Value>> Iterate(const Value& value, Budget& budget);

}  // namespace kvcache::jinja
