// The language's built-ins: attributes and items, operators, methods, filters, tests and functions,
// with the behaviour of Jinja and Python. Unknown names return kUnsupported. Messages describe the
// fault; callers add line and column.
//
// Thread safety: free functions; an Environment belongs to one rendering.
#pragma once

#include <string_view>
#include <vector>

#include "base/errors.h"
#include "chat_template/value/budget.h"
#include "chat_template/value/callable.h"
#include "chat_template/value/environment.h"
#include "chat_template/value/generator.h"
#include "chat_template/value/python_text.h"
#include "chat_template/value/value.h"
#include "kvcache/status.h"

namespace kvcache::jinja {

// Returns Python's str(), which {{ value }} prints: nothing for undefined, "None" for none.
Result<MarkedText> TextOf(const Value& value, Budget& budget);

// Options of Python's json.dumps.
struct JsonStyle {
  bool ascii = false;
  bool sorted = false;
  bool lines = false;  // an indent was given
  MarkedText indent;
  MarkedText item_separator{", ", Origin::kForeign};
  MarkedText key_separator{": ", Origin::kForeign};
};
// Returns the value as JSON. Strings keep the origin of their bytes; all other bytes are foreign.
Result<MarkedText> JsonOf(const Value& value, const JsonStyle& style, Budget& budget);

// Returns whether object.name is a method, or an attribute of Python that is not supported. Items of a dict with
// such a name are not its attributes.
bool IsBuiltinName(const Value& object, std::string_view name);
// Return object.name and object[key]: a method, an attribute or an item; undefined if there is
// none. Errors: the object is undefined; an attribute that is not supported.
Result<Value> GetAttribute(const Value& object, const MarkedText& name, Environment& env);
Result<Value> GetItem(const Value& object, const Value& key, Environment& env);
// Returns object[begin:end:step]. Bounds that are undefined or none count as omitted.
Result<Value> GetSlice(const Value& object, const Value& begin, const Value& end, const Value& step,
                       Environment& env);

// Applies the operator `name`: + - * / // % **
Result<Value> Operate(std::string_view name, const Value& a, const Value& b, Budget& budget);
// Returns Python's format % values.
Result<Value> FormatPercent(const MarkedText& format, const Value& values, Budget& budget);
// Returns Python's format.format(…).
Result<Value> FormatBraces(const MarkedText& format, const Arguments& arguments, Environment& env);

// Returns whether `self` has this method.
bool HasMethod(const Value& self, std::string_view name);
Result<Value> CallMethod(const Callable& method, const Arguments& arguments, Environment& env);

bool HasFunction(std::string_view name);
Result<Value> CallFunction(std::string_view name, const Arguments& arguments, Environment& env);

Result<Value> ApplyFilter(std::string_view name, const Value& input, const Arguments& arguments,
                          Environment& env);
Result<bool> ApplyTest(std::string_view name, const Value& input, const Arguments& arguments,
                       Environment& env);

// ---- Shared helpers ----

// Returns kUnsupported: "filter 'x' is not supported".
Status NotSupported(std::string_view what, std::string_view name);

// Converts an argument, or returns `otherwise` if it is null. Errors: another kind, with the name.
Result<std::int64_t> IntegerOr(const Value* value, std::int64_t otherwise, std::string_view name);
Result<MarkedText> TextOr(const Value* value, std::string_view otherwise, std::string_view name);
bool BoolOr(const Value* value, bool otherwise);

// Returns the number of characters, items or keys; 0 for undefined. Errors: other kinds.
Result<std::int64_t> LengthOf(const Value& value, Environment& env);

// Returns pieces of a text as a list of texts. `by` is the origin of the argument that determines
// the cuts (MarkedText::CutOut).
Result<Value> ListOf(const MarkedText& text, const std::vector<TextRange>& pieces, Budget& budget,
                     Origin by = Origin::kTemplate);

// Return a text without the characters of the argument `chars`, or white space, at its ends; and in
// another case, which takes no arguments.
Result<Value> StripText(const MarkedText& text, Sides sides, const Arguments& arguments,
                        Budget& budget);
Result<Value> ChangeTextCase(const MarkedText& text, Case to, const Arguments& arguments,
                             Budget& budget);

// Replaces the first `max_count` (-1: all) occurrences of `from` by `to`.
Result<MarkedText> Replace(const MarkedText& text, const MarkedText& from, const MarkedText& to,
                           std::int64_t max_count, Budget& budget);

// Joins the items with `separator` between them.
Result<MarkedText> Join(const std::vector<Value>& items, const MarkedText& separator,
                        Budget& budget);

// Sorts `order` stably by Less of the keys. Charges the budget for comparisons.
Status SortBy(const std::vector<Value>& keys, bool reverse, std::vector<std::size_t>& order,
              Budget& budget);

}  // namespace kvcache::jinja
