// The language's built-ins: attributes and items, operators, methods, filters, tests and functions,
// with the behaviour of Jinja and Python. Unknown names are errors of kind kUnsupported. Messages
// describe the fault; callers add line and column.
//
// Thread safety: free functions; an Environment belongs to one rendering.
#pragma once

#include <ctime>
#include <memory>
#include <string_view>
#include <vector>

#include "chat_template/budget.h"
#include "chat_template/callable.h"
#include "chat_template/value.h"
#include "kvcache/status.h"

namespace kvcache::jinja {

struct Environment {
  Budget budget;
  std::tm now;
  int depth = 0;                                        // of filters that apply filters
  std::vector<std::shared_ptr<Namespace>> spaces = {};  // all that were made: they may form cycles
};

// Python's str(): what {{ value }} prints. Undefined is nothing, none is "None".
Result<MarkedText> TextOf(const Value& value, Budget& budget);

// json.dumps. Strings keep their marks; all else counts as foreign.
struct JsonStyle {
  bool ascii = false;
  bool sorted = false;
  bool lines = false;  // an indent was given
  MarkedText indent;
  MarkedText item_separator{", ", Origin::kForeign};
  MarkedText key_separator{": ", Origin::kForeign};
};
Result<MarkedText> JsonOf(const Value& value, const JsonStyle& style, Budget& budget);

// object.name and object[key]: a method, an attribute or an item; undefined if there is none.
// Errors: the object is undefined; an attribute that templates may not use.
Result<Value> GetAttribute(const Value& object, std::string_view name, Environment& env);
Result<Value> GetItem(const Value& object, const Value& key, Environment& env);
// object[begin:end:step]; bounds that are undefined or none count as omitted.
Result<Value> GetSlice(const Value& object, const Value& begin, const Value& end, const Value& step,
                       Environment& env);

// + - * / // % **
Result<Value> Operate(std::string_view name, const Value& a, const Value& b, Budget& budget);
// Texts with %s and the like: format % values.
Result<Value> FormatPercent(const MarkedText& format, const Value& values, Budget& budget);

// Whether `self` has this method.
bool HasMethod(const Value& self, std::string_view name);
Result<Value> CallMethod(const Callable& method, const Arguments& arguments, Environment& env);

bool HasFunction(std::string_view name);
Result<Value> CallFunction(std::string_view name, const Arguments& arguments, Environment& env);

Result<Value> ApplyFilter(std::string_view name, const Value& input, const Arguments& arguments,
                          Environment& env);
Result<bool> ApplyTest(std::string_view name, const Value& input, const Arguments& arguments,
                       Environment& env);

// ---- Shared helpers ----

Status Wrong(std::string message);
// "filter 'x' is not offered".
Status NotOffered(std::string_view what, std::string_view name);

// Converts an argument, or returns `otherwise` if it is null. Errors: another kind, with the name.
Result<std::int64_t> IntegerOr(const Value* value, std::int64_t otherwise, std::string_view name);
Result<MarkedText> TextOr(const Value* value, std::string_view otherwise, std::string_view name);
bool TruthOr(const Value* value, bool otherwise);

// Returns the number of characters, items or keys; 0 for undefined. Errors: other kinds.
Result<std::int64_t> LengthOf(const Value& value, Budget& budget);

// Returns pieces of a text as a list of texts. `by`: the origin of the argument that says where to
// cut (MarkedText::CutOut).
Result<Value> ListOf(const MarkedText& text, const std::vector<TextRange>& pieces, Budget& budget,
                     Origin by = Origin::kTemplate);

// Replaces the first `most` (-1: all) occurrences of `from` by `to`.
Result<MarkedText> Replace(const MarkedText& text, const MarkedText& from, const MarkedText& to,
                           std::int64_t most, Budget& budget);

// Joins the items with `separator` between them.
Result<MarkedText> Join(const std::vector<Value>& items, const MarkedText& separator,
                        Budget& budget);

// Sorts `order` stably by Less of the keys. Charges the budget for comparisons.
Status SortBy(const std::vector<Value>& keys, bool reverse, std::vector<std::size_t>& order,
              Budget& budget);

}  // namespace kvcache::jinja
