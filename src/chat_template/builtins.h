// What the language brings along: attributes and items, operators, methods, filters, tests and
// functions, each as Jinja and Python have it. Names that are not here are reported as not
// offered (kUnsupported); errors say what, the caller says where.
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

// object.name and object[key]: methods, attributes, items; undefined if there is none.
// Errors: the object is undefined, an attribute that no template may touch.
Result<Value> GetAttribute(const Value& object, std::string_view name, Environment& env);
Result<Value> GetItem(const Value& object, const Value& key, Environment& env);
// object[begin:end:step]; undefined and none: left out.
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

// ---- What they share ----

Status Wrong(std::string message);
// "filter 'x' is not offered".
Status NotOffered(std::string_view what, std::string_view name);

// The value as the kind that is asked for, or `otherwise` where it is null. Errors name it.
Result<std::int64_t> IntegerOr(const Value* value, std::int64_t otherwise, std::string_view name);
Result<MarkedText> TextOr(const Value* value, std::string_view otherwise, std::string_view name);
bool TruthOr(const Value* value, bool otherwise);

// How many characters, items or keys; of undefined 0. Errors: what has no length.
Result<std::int64_t> LengthOf(const Value& value, Budget& budget);

// Pieces of a text as a list of texts. `by`: the origin of what says where to cut.
Result<Value> ListOf(const MarkedText& text, const std::vector<TextRange>& pieces, Budget& budget,
                     Origin by = Origin::kTemplate);

// `text` with `most` (-1: all) of `from` replaced by `to`.
Result<MarkedText> Replace(const MarkedText& text, const MarkedText& from, const MarkedText& to,
                           std::int64_t most, Budget& budget);

// The items with `separator` between them.
Result<MarkedText> Join(const std::vector<Value>& items, const MarkedText& separator,
                        Budget& budget);

// A stable sort by Less of the keys. Charges what comparing costs.
Status SortBy(const std::vector<Value>& keys, bool reverse, std::vector<std::size_t>& order,
              Budget& budget);

}  // namespace kvcache::jinja
