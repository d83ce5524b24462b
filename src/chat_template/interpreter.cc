#include "chat_template/interpreter.h"

#include <utility>

#include "base/strings.h"
#include "chat_template/place_status.h"

namespace kvcache::jinja {

namespace {

// Appends what a statement writes to the output.
Status Emit(const MarkedText& text, Place place, Budget& budget, MarkedText& out) {
  KVCACHE_RETURN_IF_ERROR(At(place, budget.Spend(text.size())));
  out.Append(text);
  return At(place, out.Hold(budget));
}

}  // namespace

Interpreter::Interpreter(const ParsedTemplate& parsed,
                         std::vector<std::pair<std::string, Value>> variables, Environment env)
    : env_(std::move(env)), parsed_(parsed), scope_(std::make_shared<Scope>()) {
  const auto& symbols = parsed.symbols.numbers();
  for (const auto& [name, symbol] : symbols) {
    if (!HasFunction(name)) continue;
    Callable function;
    function.name = name;
    scope_->Set(symbol, Value(std::make_shared<const Callable>(std::move(function))));
  }
  for (auto& [name, value] : variables) {
    const auto symbol = symbols.find(name);
    if (symbol != symbols.end()) scope_->Set(symbol->second, std::move(value));
  }
}

// Macros own scopes that own macros, and namespaces may own themselves. Clearing them here breaks
// the cycles. Nothing recurses, because the lists of the living own all of them.
Interpreter::~Interpreter() {
  const auto scopes = captured_.Living();
  const auto namespaces = env_.namespaces.Living();
  for (const auto& scope : scopes) scope->variables.clear();
  for (const auto& space : namespaces) space->attributes.clear();
}

Result<MarkedText> Interpreter::Run() {
  MarkedText text;
  out_ = &text;
  KVCACHE_RETURN_IF_ERROR(Execute(parsed_.body).status());
  return text;
}

namespace {

// Replaces the current scope by a new child of `parent` during its lifetime.
class NestedScope {
 public:
  NestedScope(std::shared_ptr<Scope>& current, std::shared_ptr<Scope> parent)
      : current_(current), outer_(current) {
    current = std::make_shared<Scope>();
    current->parent = std::move(parent);
  }
  ~NestedScope() { current_ = std::move(outer_); }
  NestedScope(const NestedScope&) = delete;
  NestedScope& operator=(const NestedScope&) = delete;

 private:
  std::shared_ptr<Scope>& current_;
  std::shared_ptr<Scope> outer_;
};

}  // namespace

Result<Interpreter::Flow> Interpreter::Execute(const Body& body) {
  for (const Statement& statement : body) {
    KVCACHE_RETURN_IF_ERROR(At(statement.place, env_.budget.Spend(Budget::kStep)));
    if (depth_ >= kMaxEvaluationDepth) return TooDeep(statement.place);
    ++depth_;
    auto flow = ExecuteOne(statement);
    --depth_;
    if (!flow.ok() || *flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::ExecuteOne(const Statement& statement) {
  Status status;
  switch (statement.kind) {
    case StatementKind::kData:
      status = Emit(statement.value.text(), statement.place, env_.budget, *out_);
      break;
    case StatementKind::kPrint: status = Print(statement); break;
    case StatementKind::kIf: return If(statement);
    case StatementKind::kFor: return For(statement);
    case StatementKind::kSet: status = Set(statement); break;
    case StatementKind::kSetBlock: status = SetBlock(statement); break;
    case StatementKind::kMacro: {
      KVCACHE_ASSIGN_OR_RETURN(Value macro, MakeMacro(statement));
      scope_->Set(statement.symbol, std::move(macro));
      break;
    }
    case StatementKind::kCall: status = CallBlock(statement); break;
    case StatementKind::kFilter: status = FilterBlock(statement); break;
    case StatementKind::kWith: return With(statement);
    case StatementKind::kGeneration: {
      const NestedScope nested(scope_, scope_);
      return Execute(statement.body);
    }
    case StatementKind::kBreak: return Flow::kBreak;
    case StatementKind::kContinue: return Flow::kContinue;
  }
  KVCACHE_RETURN_IF_ERROR(status);
  return Flow::kNext;
}

Status Interpreter::Print(const Statement& statement) {
  Value storage;
  KVCACHE_ASSIGN_OR_RETURN(const Value* value, Refer(*statement.expression, storage));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, At(statement.place, TextOf(*value, env_.budget)));
  return Emit(text, statement.place, env_.budget, *out_);
}

Result<Interpreter::Flow> Interpreter::If(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition) {
      KVCACHE_ASSIGN_OR_RETURN(const bool holds, IsTrue(*branch.condition));
      if (!holds) continue;
    }
    return Execute(branch.body);
  }
  return Flow::kNext;
}

// Evaluates the condition in the scope where the loop began, when the next item is asked for.
class Interpreter::FilteredItems final : public Generator {
 public:
  FilteredItems(Interpreter& interpreter, const Statement& statement,
                std::shared_ptr<Generator> source)
      : Generator(source->nesting() + 1),
        interpreter_(interpreter),
        statement_(statement),
        scope_(interpreter.scope_),
        source_(std::move(source)) {}

  Result<std::optional<Value>> Next(Environment& env) override {
    for (;;) {
      KVCACHE_RETURN_IF_ERROR(env.budget.Spend(Budget::kStep));
      KVCACHE_ASSIGN_OR_RETURN(std::optional<Value> item, source_->Next(env));
      if (!item) return item;
      const NestedScope nested(interpreter_.scope_, scope_);
      KVCACHE_RETURN_IF_ERROR(interpreter_.Assign(*statement_.target, *item));
      KVCACHE_ASSIGN_OR_RETURN(const bool holds, interpreter_.IsTrue(*statement_.condition));
      if (holds) return item;
    }
  }

 private:
  Interpreter& interpreter_;
  const Statement& statement_;
  const std::shared_ptr<Scope> scope_;
  const std::shared_ptr<Generator> source_;
};

Result<std::shared_ptr<Loop>> Interpreter::MakeLoop(const Statement& statement) {
  KVCACHE_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
  KVCACHE_ASSIGN_OR_RETURN(std::shared_ptr<Generator> items,
                           At(statement.place, ItemsOf(value, env_.budget)));
  std::int64_t length = -1;
  if (statement.condition) {
    items = std::make_shared<FilteredItems>(*this, statement, std::move(items));
  } else if (!value.is(Value::Kind::kGenerator)) {
    KVCACHE_ASSIGN_OR_RETURN(length, LengthOf(value, env_));
  }
  auto loop = std::make_shared<Loop>(std::move(items), length);
  if (loop->nesting() > kMaxNesting) return TooDeep(statement.place);
  return loop;
}

Result<Interpreter::Flow> Interpreter::For(const Statement& statement) {
  KVCACHE_ASSIGN_OR_RETURN(const std::shared_ptr<Loop> loop, MakeLoop(statement));
  const std::shared_ptr<Scope> outer = scope_;
  const NestedScope nested(scope_, outer);
  for (bool is_first = true;; is_first = false) {
    KVCACHE_RETURN_IF_ERROR(At(statement.place, env_.budget.Spend(Budget::kStep)));
    KVCACHE_ASSIGN_OR_RETURN(const bool more, At(statement.place, loop->Advance(env_)));
    // Each iteration has a scope of its own, but only macros can tell.
    if (scope_.use_count() > 1) {
      scope_ = std::make_shared<Scope>();
      scope_->parent = outer;
    }
    scope_->variables.clear();
    if (!more) return is_first ? Execute(statement.otherwise) : Result<Flow>(Flow::kNext);
    scope_->variables.emplace_back(Symbols::kLoop, Value(loop));
    KVCACHE_RETURN_IF_ERROR(Assign(*statement.target, loop->current()));
    KVCACHE_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body));
    if (flow == Flow::kBreak) return Flow::kNext;
  }
}

Status Interpreter::Assign(const Expression& target, Value value) {
  if (target.kind == ExpressionKind::kName) {
    scope_->Set(target.symbol, std::move(value));
    return Status::Ok();
  }
  if (target.kind == ExpressionKind::kAttribute) {
    KVCACHE_ASSIGN_OR_RETURN(const Value space, Evaluate(*target.parts[0]));
    if (!space.is(Value::Kind::kNamespace)) {
      return At(target.place, InvalidArgument(StrCat("cannot set an attribute of ",
                                                     space.KindName(), "; must be a namespace")));
    }
    return At(target.place, space.ns().Set(target.name, std::move(value), env_.budget));
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, At(target.place, Iterate(value, env_)));
  if (items.size() != target.parts.size()) {
    return At(target.place, InvalidArgument(StrCat("cannot assign ", items.size(), " values to ",
                                                   target.parts.size(), " names")));
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(Assign(*target.parts[i], items[i]));
  }
  return Status::Ok();
}

Status Interpreter::Set(const Statement& statement) {
  KVCACHE_ASSIGN_OR_RETURN(Value value, Evaluate(*statement.expression));
  return Assign(*statement.target, std::move(value));
}

Result<MarkedText> Interpreter::Capture(const Body& body) {
  MarkedText text;
  MarkedText* const outer = std::exchange(out_, &text);
  const NestedScope nested(scope_, scope_);
  const auto flow = Execute(body);
  out_ = outer;
  KVCACHE_RETURN_IF_ERROR(flow.status());
  return text;
}

Status Interpreter::SetBlock(const Statement& statement) {
  KVCACHE_ASSIGN_OR_RETURN(MarkedText text, Capture(statement.body));
  KVCACHE_ASSIGN_OR_RETURN(Value value,
                           At(statement.place, MakeText(std::move(text), env_.budget)));
  if (statement.expression) {
    KVCACHE_ASSIGN_OR_RETURN(value, Filter(*statement.expression, &value));
  }
  return Assign(*statement.target, std::move(value));
}

Status Interpreter::FilterBlock(const Statement& statement) {
  KVCACHE_ASSIGN_OR_RETURN(MarkedText text, Capture(statement.body));
  const Value input(std::move(text));
  KVCACHE_ASSIGN_OR_RETURN(const Value value, Filter(*statement.expression, &input));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText filtered,
                           At(statement.place, TextOf(value, env_.budget)));
  return Emit(filtered, statement.place, env_.budget, *out_);
}

Result<Value> Interpreter::MakeMacro(const Statement& statement) {
  constexpr std::size_t kScopeBytes = 512;
  KVCACHE_RETURN_IF_ERROR(At(statement.place, env_.budget.Spend(8 * Budget::kItem)));
  KVCACHE_RETURN_IF_ERROR(At(statement.place, scope_->charge.Hold(kScopeBytes, env_.budget)));
  captured_.Add(scope_);
  Callable macro;
  macro.kind = Callable::Kind::kMacro;
  macro.name = statement.name;
  macro.macro = &statement;
  macro.scope = scope_;
  return Value(std::make_shared<const Callable>(std::move(macro)));
}

Status Interpreter::CallBlock(const Statement& statement) {
  const Expression& call = *statement.expression;
  KVCACHE_ASSIGN_OR_RETURN(const Value callee, Evaluate(*call.parts[0]));
  KVCACHE_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(call));
  KVCACHE_ASSIGN_OR_RETURN(Value caller, MakeMacro(statement));
  arguments.named.emplace_back(MarkedText("caller", Origin::kTemplate), std::move(caller));
  KVCACHE_ASSIGN_OR_RETURN(const Value value,
                           At(call.place, CallValue(callee, std::move(arguments))));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText text, At(statement.place, TextOf(value, env_.budget)));
  return Emit(text, statement.place, env_.budget, *out_);
}

Result<Interpreter::Flow> Interpreter::With(const Statement& statement) {
  std::vector<Value> values;
  for (const auto& [target, expression] : statement.assignments) {
    KVCACHE_ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
    values.push_back(std::move(value));
  }
  const NestedScope nested(scope_, scope_);
  for (std::size_t i = 0; i < values.size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(Assign(*statement.assignments[i].first, std::move(values[i])));
  }
  return Execute(statement.body);
}

// ---- Macros ----

Result<Value> Interpreter::CallMacro(const Callable& macro, Arguments arguments) {
  const Statement& statement = *macro.macro;
  if (depth_ >= kMaxEvaluationDepth) return TooDeep(statement.place);
  KVCACHE_RETURN_IF_ERROR(env_.budget.Spend(4 * Budget::kItem));
  const NestedScope nested(scope_, macro.scope);
  KVCACHE_RETURN_IF_ERROR(BindMacro(statement, arguments, *scope_));
  KVCACHE_ASSIGN_OR_RETURN(MarkedText text, Capture(statement.body));
  return MakeText(std::move(text), env_.budget);
}

namespace {

// Removes the named argument from `arguments` and returns it. Sets `found`.
Value TakeNamed(Arguments& arguments, std::string_view name, bool* found) {
  for (auto it = arguments.named.begin(); it != arguments.named.end(); ++it) {
    if (it->first.bytes() != name) continue;
    Value value = std::move(it->second);
    arguments.named.erase(it);
    *found = true;
    return value;
  }
  *found = false;
  return Value();
}

}  // namespace

Status Interpreter::BindMacro(const Statement& macro, Arguments& arguments, Scope& scope) {
  const std::size_t count = macro.parameters.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Parameter& parameter = macro.parameters[i];
    if (i < arguments.positional.size()) {
      scope.Set(parameter.symbol, arguments.positional[i]);
      continue;
    }
    bool found = false;
    Value value = TakeNamed(arguments, parameter.name, &found);
    if (!found) {
      value = Value::Missing(StrCat("parameter ", Quoted(parameter.name), " is not given"));
    }
    scope.Set(parameter.symbol, std::move(value));
    if (found || !parameter.otherwise) continue;
    KVCACHE_ASSIGN_OR_RETURN(Value otherwise, Evaluate(*parameter.otherwise));
    scope.Set(parameter.symbol, std::move(otherwise));
  }
  if (macro.uses_caller) {
    bool found = false;
    Value caller = TakeNamed(arguments, "caller", &found);
    scope.Set(
        Symbols::kCaller,
        found ? std::move(caller) : Value::Missing("caller is undefined outside of a call block"));
  }
  if (macro.uses_kwargs) {
    Dict named;
    for (auto& [name, value] : arguments.named) {
      KVCACHE_RETURN_IF_ERROR(named.Set(Value(name), value, env_.budget));
    }
    scope.Set(Symbols::kKwargs, MakeDict(std::move(named)));
  } else if (!arguments.named.empty()) {
    return InvalidArgument(StrCat("macro '", macro.name, "' has no parameter ",
                                  Quoted(arguments.named.front().first.bytes())));
  }
  const std::size_t given = arguments.positional.size();
  if (macro.uses_varargs) {
    const auto begin =
        arguments.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, given));
    KVCACHE_ASSIGN_OR_RETURN(
        Value rest, MakeList({begin, arguments.positional.end()}, env_.budget, ListKind::kTuple));
    scope.Set(Symbols::kVarargs, std::move(rest));
  } else if (given > count) {
    return InvalidArgument(StrCat("the call of macro '", macro.name, "' has ", given,
                                  " arguments; at most ", count, " are allowed"));
  }
  return Status::Ok();
}

}  // namespace kvcache::jinja
