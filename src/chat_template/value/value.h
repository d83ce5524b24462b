// The values of a chat template: Python's, as far as templates can use them.
//
// Values are immutable except for namespaces and generators, so lists and dicts form no cycles, and
// their nesting is known when they are made (kMaxNesting). Texts carry an origin per byte
// (marked_text.h); equality and order compare the bytes only.
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
struct Environment;
class Generator;
class Loop;

inline constexpr int kMaxNesting = 100;  // of lists and dicts; deeper JSON is an error

class Value;

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
    kGenerator,
  };

  Value() : Value(Undefined{}) {}
  explicit Value(std::int64_t number);
  explicit Value(double number);
  explicit Value(MarkedText text);
  explicit Value(std::shared_ptr<const List> list);
  explicit Value(std::shared_ptr<const Dict> dict);
  explicit Value(std::shared_ptr<Namespace> space);
  explicit Value(std::shared_ptr<const Callable> callable);
  explicit Value(std::shared_ptr<Loop> loop);
  explicit Value(std::shared_ptr<Generator> generator);
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
    return Value(MarkedText::Constant(bytes, Origin::kTemplate));
  }
  // Returns an undefined value. It prints as nothing; other uses are an error with the message
  // `why`.
  static Value Missing(std::string_view why) {
    return Value(Undefined{MarkedText(why, Origin::kTemplate), Kind::kUndefined});
  }
  // Returns the undefined value of a missing attribute or item; its message is made when asked for.
  static Value MissingIn(const Value& object, const MarkedText& name) {
    return Value(Undefined{name, object.kind()});
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
  const MarkedText& text() const { return std::get<MarkedText>(data_); }
  std::string_view bytes() const { return text().bytes(); }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const std::vector<Value>& items() const;
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& ns() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }
  Loop& loop() const { return *std::get<std::shared_ptr<Loop>>(data_); }
  Generator& generator() const { return *std::get<std::shared_ptr<Generator>>(data_); }
  // Returns the object itself, which copies of the value share.
  const std::shared_ptr<const List>& shared_list() const {
    return std::get<std::shared_ptr<const List>>(data_);
  }
  const std::shared_ptr<Generator>& shared_generator() const {
    return std::get<std::shared_ptr<Generator>>(data_);
  }
  // Returns why the value is undefined: "'x' is undefined".
  std::string why() const;

  bool IsTruthy() const;

  // Returns 0 for values without items, else one more than the deepest item.
  int Nesting() const;

  // Returns "a string", "a list", … for messages.
  std::string_view KindName() const;

 private:
  struct Undefined {
    MarkedText text;             // the message, or the name of what is missing
    Kind of = Kind::kUndefined;  // the kind of the object where it is missing
  };
  using Data = std::variant<Undefined, std::monostate, bool, std::int64_t, double, MarkedText,
                            std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                            std::shared_ptr<Namespace>, std::shared_ptr<const Callable>,
                            std::shared_ptr<Loop>, std::shared_ptr<Generator>>;
  explicit Value(Undefined undefined);
  explicit Value(Data data);

  Data data_;
};

enum class ListKind : std::uint8_t { kList, kTuple };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  int nesting = 1;
  bool is_group = false;  // a pair of groupby: has the attributes grouper and list
  MemoryCharge charge;
};

// A table that keeps keys in insertion order. It has no index while it is small.
class Dict {
 public:
  using Item = std::pair<Value, Value>;
  const std::vector<Item>& items() const { return items_; }
  std::size_t size() const { return items_.size(); }

  // Returns nullptr if there is none.
  const Value* Find(std::string_view key) const;
  // Errors: a key that is not hashable, the budget.
  Result<const Value*> FindKey(const Value& key, Budget& budget) const;

  // A later value replaces an earlier one. Charges the memory. Errors: a key that is not hashable,
  // nested too deep, the budget.
  Status Set(Value key, Value value, Budget& budget);

  int nesting() const { return nesting_; }

 private:
  // Returns the place of the key, or size(). REQUIRES: `hashed` is HashKey of the key.
  std::size_t PlaceOf(const std::string& hashed) const;
  std::size_t PlaceOfText(std::string_view key) const;
  Status Index(Budget& budget);

  std::vector<Item> items_;
  std::unordered_map<std::string, std::size_t> index_;  // by HashKey; empty if not needed
  bool only_texts_ = true;                              // all keys are texts
  int nesting_ = 1;
  MemoryCharge charge_;
};

// A mutable set of attributes. Namespaces may form cycles, so the interpreter owns all of them and
// clears them at the end of the rendering.
struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  MemoryCharge charge;
  Value* Find(std::string_view name);
  // Adds or replaces an attribute and charges the memory.
  Status Set(std::string_view name, Value value, Budget& budget);
};

// Returns a list or tuple of `items` and charges their memory. Errors: nested too deep, the budget.
Result<Value> MakeList(std::vector<Value> items, Budget& budget, ListKind kind = ListKind::kList);

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
Result<bool> Contains(const Value& haystack, const Value& needle, Environment& env);

}  // namespace kvcache::jinja
