// Evaluates a parsed template with variables by walking its tree.
//
// The work is bounded, whatever the template does: the budget counts steps and bytes, and
// statements, expressions and macros nest at most kMaxEvaluationDepth deep.
//
// Thread safety: one thread at a time; call Run once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chat_template/builtins/builtins.h"
#include "chat_template/syntax/parser.h"

namespace kvcache::jinja {

inline constexpr int kMaxEvaluationDepth = 500;

// Variables by symbol. Scopes have few of them, so a search reads them in order.
struct Scope {
  std::vector<std::pair<int, Value>> variables;
  std::shared_ptr<Scope> parent;
  MemoryCharge charge;

  // Returns nullptr if there is none.
  Value* Find(int symbol) {
    for (auto& [known, value] : variables) {
      if (known == symbol) return &value;
    }
    return nullptr;
  }
  void Set(int symbol, Value value) {
    if (Value* known = Find(symbol)) {
      *known = std::move(value);
    } else {
      variables.emplace_back(symbol, std::move(value));
    }
  }
};

class Interpreter {
 public:
  // `parsed` must outlive the interpreter. `variables` are names and values.
  Interpreter(const ParsedTemplate& parsed, std::vector<std::pair<std::string, Value>> variables,
              Environment env);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Returns the text. Errors, with line and column: kInvalidArgument: an error that the template
  // causes or raises; kUnsupported: an unsupported construct, or a bound exceeded.
  Result<MarkedText> Run();

 private:
  enum class Flow : std::uint8_t { kNext, kBreak, kContinue };

  // ---- Statements (interpreter.cc) ----
  Result<Flow> Execute(const Body& body);
  Result<Flow> ExecuteOne(const Statement& statement);
  Status Print(const Statement& statement);
  Result<Flow> If(const Statement& statement);
  Result<Flow> For(const Statement& statement);
  Result<std::shared_ptr<Loop>> MakeLoop(const Statement& statement);
  Status Set(const Statement& statement);
  Status SetBlock(const Statement& statement);
  Status CallBlock(const Statement& statement);
  Status FilterBlock(const Statement& statement);
  Result<Flow> With(const Statement& statement);
  Result<Value> MakeMacro(const Statement& statement);
  Status Assign(const Expression& target, Value value);
  // Runs `body` in its own scope and returns its text.
  Result<MarkedText> Capture(const Body& body);
  class FilteredItems;  // the items of a loop with a condition

  // ---- Expressions (evaluate.cc) ----
  Result<Value> Evaluate(const Expression& expression);
  Result<Value> EvaluateKind(const Expression& expression);
  // Returns the value without a copy if it is a constant, a variable, or an item of a dict of those;
  // else a pointer to `storage`. It is valid while `storage` lives and no statement runs.
  Result<const Value*> Refer(const Expression& expression, Value& storage);
  Result<const Value*> ReferKind(const Expression& expression, Value& storage);
  Result<const Value*> Name(const Expression& expression, Value& storage);
  Result<const Value*> Member(const Expression& expression, Value& storage);
  Result<bool> IsTrue(const Expression& expression);
  Result<Value> Items(const Expression& expression);
  Result<Value> DictLiteral(const Expression& expression);
  Result<Value> Slice(const Expression& expression);
  Result<Value> Call(const Expression& expression);
  Result<Value> Filter(const Expression& expression, const Value* input);
  Result<Value> Test(const Expression& expression);
  Result<Value> Concat(const Expression& expression);
  Result<Value> Unary(const Expression& expression);
  Result<Value> Binary(const Expression& expression);
  Result<Value> Compare(const Expression& expression);
  Result<Value> AndOr(const Expression& expression);
  Result<Value> Conditional(const Expression& expression);
  Result<Arguments> EvaluateArguments(const Expression& call);
  Result<Value> CallValue(const Value& callee, Arguments arguments);
  Result<Value> CallMacro(const Callable& macro, Arguments arguments);
  Status BindMacro(const Statement& macro, Arguments& arguments, Scope& scope);

  Environment env_;
  const ParsedTemplate& parsed_;
  std::shared_ptr<Scope> scope_;
  CyclicObjects<Scope> captured_;  // by macros; these scopes may form cycles
  MarkedText* out_ = nullptr;
  int depth_ = 0;
};

}  // namespace kvcache::jinja
