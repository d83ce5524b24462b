// A parsed template: statements and expressions.
//
// One struct each, with a kind; the comment of a kind names the members that it uses. The parser
// bounds the depth of the trees.
//
// Thread safety: const after parsing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat_template/syntax/lexer.h"
#include "chat_template/value/value.h"

namespace kvcache::jinja {

// Numbers of the names of variables. The first ones are those that the interpreter sets itself.
class Symbols {
 public:
  enum Known : int { kLoop, kCaller, kVarargs, kKwargs };

  Symbols() {
    for (const char* known : {"loop", "caller", "varargs", "kwargs"}) Of(known);
  }

  int Of(std::string_view name) {
    const auto found = numbers_.find(name);
    if (found != numbers_.end()) return found->second;
    const int number = static_cast<int>(numbers_.size());
    numbers_.emplace(name, number);
    return number;
  }

  const std::map<std::string, int, std::less<>>& numbers() const { return numbers_; }

 private:
  std::map<std::string, int, std::less<>> numbers_;
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind : std::uint8_t {
  kConstant,     // value
  kName,         // name, symbol
  kList,         // parts
  kTuple,        // parts
  kDict,         // parts: key, value, key, value, …
  kAttribute,    // parts[0].name; value is the name, too
  kItem,         // parts[0][parts[1]]
  kSlice,        // parts[0][parts[1]:parts[2]:parts[3]]; the bounds may be null
  kCall,         // parts[0](parts[1…], named, *rest, **named_rest)
  kFilter,       // parts[0] | name(parts[1…], …); parts[0] may be null (filter block)
  kTest,         // parts[0] is name(parts[1…], …)
  kConcat,       // parts joined as texts
  kUnary,        // name parts[0]: + -
  kBinary,       // parts[0] name parts[1]: + - * / // % **
  kCompare,      // parts[0] names[0] parts[1] names[1] parts[2] …
  kNot,          // not parts[0]
  kAnd,          // parts[0] and parts[1]
  kOr,           // parts[0] or parts[1]
  kConditional,  // parts[1] if parts[0] else parts[2]; parts[2] may be null
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  Place place;
  int depth = 1;  // levels of this tree
  std::string name;
  int symbol = 0;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::string> names;                            // kCompare
  std::vector<std::pair<std::string, ExpressionPtr>> named;  // keyword arguments
  ExpressionPtr rest;
  ExpressionPtr named_rest;
};

struct Statement;
using Body = std::vector<Statement>;

enum class StatementKind : std::uint8_t {
  kData,        // value
  kPrint,       // expression
  kIf,          // branches; a branch without condition is the else
  kFor,         // for target in expression if condition: body, otherwise
  kSet,         // target = expression
  kSetBlock,    // target = body, through filter
  kMacro,       // name(parameters): body
  kCall,        // expression is the call; parameters: body is its caller
  kFilter,      // body through filter
  kWith,        // targets = values: body
  kGeneration,  // body
  kBreak,
  kContinue,
};

struct Branch {
  ExpressionPtr condition;
  Body body;
};

struct Parameter {
  std::string name;
  int symbol = 0;
  ExpressionPtr otherwise;  // null: none
};

struct Statement {
  StatementKind kind = StatementKind::kData;
  Place place;
  std::string name;
  int symbol = 0;  // kMacro: of the name
  Value value;
  ExpressionPtr target;  // kName, kAttribute (of a namespace) or kTuple
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments;  // kWith
  Body body;
  Body otherwise;
  bool uses_caller = false;  // kMacro: the body reads caller, varargs or kwargs
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

}  // namespace kvcache::jinja
