// Interpreter: evaluates expressions.
#include "base/strings.h"
#include "chat_template/interpreter.h"
#include "chat_template/place_status.h"

namespace kvcache::jinja {

Result<Value> Interpreter::Evaluate(const Expression& expression) {
  KVCACHE_RETURN_IF_ERROR(At(expression.place, env_.budget.Spend(Budget::kStep)));
  if (depth_ >= kMaxEvaluationDepth) return TooDeep(expression.place);
  ++depth_;
  auto value = EvaluateKind(expression);
  --depth_;
  return value;
}

Result<Value> Interpreter::EvaluateKind(const Expression& expression) {
  switch (expression.kind) {
    case ExpressionKind::kConstant: return expression.value;
    case ExpressionKind::kName: return Name(expression);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple: return Items(expression);
    case ExpressionKind::kDict: return DictLiteral(expression);
    case ExpressionKind::kAttribute:
    case ExpressionKind::kItem: return Member(expression);
    case ExpressionKind::kSlice: return Slice(expression);
    case ExpressionKind::kCall: return Call(expression);
    case ExpressionKind::kFilter: return Filter(expression, nullptr);
    case ExpressionKind::kTest: return Test(expression);
    case ExpressionKind::kConcat: return Concat(expression);
    case ExpressionKind::kUnary: return Unary(expression);
    case ExpressionKind::kBinary: return Binary(expression);
    case ExpressionKind::kCompare: return Compare(expression);
    case ExpressionKind::kNot: {
      KVCACHE_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.parts[0]));
      return Value::Bool(!value.IsTruthy());
    }
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: return AndOr(expression);
    case ExpressionKind::kConditional: return Conditional(expression);
  }
  return Status(StatusCode::kInternal, "the expression has an unknown kind");
}

Result<Value> Interpreter::Name(const Expression& expression) {
  for (Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const Value* found = scope->Find(expression.symbol)) return *found;
  }
  return Value::Missing(StrCat(Quoted(expression.name), " is undefined"));
}

Result<Value> Interpreter::Items(const Expression& expression) {
  std::vector<Value> items;
  for (const ExpressionPtr& part : expression.parts) {
    KVCACHE_ASSIGN_OR_RETURN(Value item, Evaluate(*part));
    items.push_back(std::move(item));
  }
  const bool tuple = expression.kind == ExpressionKind::kTuple;
  return At(expression.place,
            MakeList(std::move(items), env_.budget, tuple ? ListKind::kTuple : ListKind::kList));
}

Result<Value> Interpreter::DictLiteral(const Expression& expression) {
  Dict dict;
  for (std::size_t i = 0; i < expression.parts.size(); i += 2) {
    KVCACHE_ASSIGN_OR_RETURN(Value key, Evaluate(*expression.parts[i]));
    KVCACHE_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.parts[i + 1]));
    KVCACHE_RETURN_IF_ERROR(
        At(expression.place, dict.Set(std::move(key), std::move(value), env_.budget)));
  }
  return MakeDict(std::move(dict));
}

Result<Value> Interpreter::Member(const Expression& expression) {
  KVCACHE_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.parts[0]));
  if (expression.kind == ExpressionKind::kAttribute) {
    return At(expression.place, GetAttribute(object, expression.value.text(), env_));
  }
  KVCACHE_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.parts[1]));
  return At(expression.place, GetItem(object, key, env_));
}

Result<Value> Interpreter::Slice(const Expression& expression) {
  Value parts[4];
  for (std::size_t i = 0; i < 4; ++i) {
    if (!expression.parts[i]) {
      parts[i] = Value::None();
      continue;
    }
    KVCACHE_ASSIGN_OR_RETURN(parts[i], Evaluate(*expression.parts[i]));
    if (parts[i].IsUndefined()) return At(expression.place, InvalidArgument(parts[i].why()));
  }
  return At(expression.place, GetSlice(parts[0], parts[1], parts[2], parts[3], env_));
}

Result<Arguments> Interpreter::EvaluateArguments(const Expression& call) {
  Arguments arguments;
  for (std::size_t i = 1; i < call.parts.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(Value value, Evaluate(*call.parts[i]));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, expression] : call.named) {
    KVCACHE_ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
    arguments.named.emplace_back(MarkedText(name, Origin::kTemplate), std::move(value));
  }
  if (call.rest) {
    KVCACHE_ASSIGN_OR_RETURN(const Value rest, Evaluate(*call.rest));
    KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> items, At(call.place, Iterate(rest, env_)));
    arguments.positional.insert(arguments.positional.end(), items.begin(), items.end());
  }
  if (call.named_rest) {
    KVCACHE_ASSIGN_OR_RETURN(const Value rest, Evaluate(*call.named_rest));
    if (!rest.IsDict()) {
      return At(call.place, InvalidArgument(StrCat("the argument of '**' is ", rest.KindName(),
                                                   "; must be a dict")));
    }
    for (const auto& [key, value] : rest.dict().items()) {
      if (!key.IsText()) {
        return At(call.place, InvalidArgument(StrCat("a key of the argument of '**' is ",
                                                     key.KindName(), "; must be a string")));
      }
      KVCACHE_RETURN_IF_ERROR(At(call.place, env_.budget.Spend(Budget::kItem)));
      arguments.named.emplace_back(key.text(), value);
    }
  }
  return arguments;
}

Result<Value> Interpreter::Call(const Expression& expression) {
  KVCACHE_ASSIGN_OR_RETURN(const Value callee, Evaluate(*expression.parts[0]));
  KVCACHE_ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expression));
  return At(expression.place, CallValue(callee, std::move(arguments)));
}

Result<Value> Interpreter::CallValue(const Value& callee, Arguments arguments) {
  if (callee.IsUndefined()) return InvalidArgument(callee.why());
  if (!callee.is(Value::Kind::kCallable)) {
    return InvalidArgument(StrCat(callee.KindName(), " cannot be called"));
  }
  const Callable& callable = callee.callable();
  switch (callable.kind) {
    case Callable::Kind::kFunction: return CallFunction(callable.name, arguments, env_);
    case Callable::Kind::kMethod: return CallMethod(callable, arguments, env_);
    case Callable::Kind::kMacro: return CallMacro(callable, std::move(arguments));
  }
  return InvalidArgument("the callable has an unknown kind");
}

// Applies a filter. In a filter block `input` is the block's text, the input of the innermost
// filter; else it is null.
Result<Value> Interpreter::Filter(const Expression& expression, const Value* input) {
  Value from;
  if (!expression.parts[0]) {
    from = *input;
  } else if (input != nullptr) {
    KVCACHE_ASSIGN_OR_RETURN(from, Filter(*expression.parts[0], input));
  } else {
    KVCACHE_ASSIGN_OR_RETURN(from, Evaluate(*expression.parts[0]));
  }
  KVCACHE_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  return At(expression.place, ApplyFilter(expression.name, from, arguments, env_));
}

Result<Value> Interpreter::Test(const Expression& expression) {
  KVCACHE_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.parts[0]));
  KVCACHE_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  KVCACHE_ASSIGN_OR_RETURN(
      const bool passes, At(expression.place, ApplyTest(expression.name, value, arguments, env_)));
  return Value::Bool(passes);
}

Result<Value> Interpreter::Concat(const Expression& expression) {
  MarkedText text;
  for (const ExpressionPtr& part : expression.parts) {
    KVCACHE_ASSIGN_OR_RETURN(const Value value, Evaluate(*part));
    KVCACHE_ASSIGN_OR_RETURN(const MarkedText more,
                             At(expression.place, TextOf(value, env_.budget)));
    KVCACHE_RETURN_IF_ERROR(At(expression.place, text.Extend(more, env_.budget)));
  }
  return Value(std::move(text));
}

Result<Value> Interpreter::Unary(const Expression& expression) {
  KVCACHE_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.parts[0]));
  if (value.IsUndefined()) return At(expression.place, InvalidArgument(value.why()));
  if (!value.IsNumber()) {
    return At(expression.place, InvalidArgument(StrCat("operator '", expression.name,
                                                       "' does not apply to ", value.KindName())));
  }
  if (value.is(Value::Kind::kFloat)) {
    return Value(expression.name == "-" ? -value.number() : value.number());
  }
  const Value sign(std::int64_t{expression.name == "-" ? -1 : 1});
  return At(expression.place, Operate("*", value, sign, env_.budget));
}

Result<Value> Interpreter::Binary(const Expression& expression) {
  KVCACHE_ASSIGN_OR_RETURN(const Value a, Evaluate(*expression.parts[0]));
  KVCACHE_ASSIGN_OR_RETURN(const Value b, Evaluate(*expression.parts[1]));
  return At(expression.place, Operate(expression.name, a, b, env_.budget));
}

Result<bool> Interpreter::CompareTwo(const std::string& name, const Value& a, const Value& b) {
  Budget& budget = env_.budget;
  if (name == "==") return Equal(a, b, budget);
  if (name == "<") return Less(a, b, budget);
  if (name == ">") return Less(b, a, budget);
  if (name == "in") return Contains(b, a, env_);
  if (name == "!=" || name == "not in") {
    KVCACHE_ASSIGN_OR_RETURN(const bool is,
                             name == "!=" ? Equal(a, b, budget) : Contains(b, a, env_));
    return !is;
  }
  KVCACHE_ASSIGN_OR_RETURN(const bool strictly,
                           name == "<=" ? Less(a, b, budget) : Less(b, a, budget));
  return strictly ? Result<bool>(true) : Equal(a, b, budget);
}

Result<Value> Interpreter::Compare(const Expression& expression) {
  KVCACHE_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.parts[0]));
  for (std::size_t i = 0; i < expression.names.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(Value right, Evaluate(*expression.parts[i + 1]));
    KVCACHE_ASSIGN_OR_RETURN(const bool holds,
                             At(expression.place, CompareTwo(expression.names[i], left, right)));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Result<Value> Interpreter::AndOr(const Expression& expression) {
  KVCACHE_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.parts[0]));
  if (left.IsTruthy() == (expression.kind == ExpressionKind::kOr)) return left;
  return Evaluate(*expression.parts[1]);
}

Result<Value> Interpreter::Conditional(const Expression& expression) {
  KVCACHE_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expression.parts[0]));
  if (condition.IsTruthy()) return Evaluate(*expression.parts[1]);
  if (expression.parts[2]) return Evaluate(*expression.parts[2]);
  return Value::Missing("the condition of an inline if without else is false");
}

}  // namespace kvcache::jinja
