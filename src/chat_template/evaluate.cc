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

Result<const Value*> Interpreter::Refer(const Expression& expression, Value& storage) {
  KVCACHE_RETURN_IF_ERROR(At(expression.place, env_.budget.Spend(Budget::kStep)));
  if (depth_ >= kMaxEvaluationDepth) return TooDeep(expression.place);
  ++depth_;
  auto value = ReferKind(expression, storage);
  --depth_;
  return value;
}

Result<const Value*> Interpreter::ReferKind(const Expression& expression, Value& storage) {
  switch (expression.kind) {
    case ExpressionKind::kConstant: return &expression.value;
    case ExpressionKind::kName: return Name(expression, storage);
    case ExpressionKind::kAttribute:
    case ExpressionKind::kItem: return Member(expression, storage);
    default: break;
  }
  KVCACHE_ASSIGN_OR_RETURN(storage, EvaluateKind(expression));
  return &storage;
}

Result<bool> Interpreter::IsTrue(const Expression& expression) {
  Value storage;
  KVCACHE_ASSIGN_OR_RETURN(const Value* value, Refer(expression, storage));
  return value->IsTruthy();
}

Result<Value> Interpreter::EvaluateKind(const Expression& expression) {
  switch (expression.kind) {
    case ExpressionKind::kConstant:
    case ExpressionKind::kName:
    case ExpressionKind::kAttribute:
    case ExpressionKind::kItem: {
      Value storage;
      KVCACHE_ASSIGN_OR_RETURN(const Value* value, ReferKind(expression, storage));
      return value == &storage ? std::move(storage) : Value(*value);
    }
    case ExpressionKind::kList:
    case ExpressionKind::kTuple: return Items(expression);
    case ExpressionKind::kDict: return DictLiteral(expression);
    case ExpressionKind::kSlice: return Slice(expression);
    case ExpressionKind::kCall: return Call(expression);
    case ExpressionKind::kFilter: return Filter(expression, nullptr);
    case ExpressionKind::kTest: return Test(expression);
    case ExpressionKind::kConcat: return Concat(expression);
    case ExpressionKind::kUnary: return Unary(expression);
    case ExpressionKind::kBinary: return Binary(expression);
    case ExpressionKind::kCompare: return Compare(expression);
    case ExpressionKind::kNot: {
      KVCACHE_ASSIGN_OR_RETURN(const bool holds, IsTrue(*expression.parts[0]));
      return Value::Bool(!holds);
    }
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: return AndOr(expression);
    case ExpressionKind::kConditional: return Conditional(expression);
  }
  return Status(StatusCode::kInternal, "the expression has an unknown kind");
}

Result<const Value*> Interpreter::Name(const Expression& expression, Value& storage) {
  for (Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const Value* found = scope->Find(expression.symbol)) return found;
  }
  storage = Value::Missing(StrCat(Quoted(expression.name), " is undefined"));
  return &storage;
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

Result<const Value*> Interpreter::Member(const Expression& expression, Value& storage) {
  KVCACHE_ASSIGN_OR_RETURN(const Value* object, Refer(*expression.parts[0], storage));
  const bool is_item = expression.kind == ExpressionKind::kItem;
  Value key_storage;
  const Value* key = &expression.value;
  if (is_item) {
    KVCACHE_ASSIGN_OR_RETURN(key, Refer(*expression.parts[1], key_storage));
  }
  const bool is_plain =
      object->IsDict() && key->IsText() && (is_item || !IsBuiltinName(*object, key->bytes()));
  const Value* item = is_plain ? object->dict().Find(key->bytes()) : nullptr;
  if (item != nullptr) return item;
  KVCACHE_ASSIGN_OR_RETURN(
      storage, At(expression.place, is_item ? GetItem(*object, *key, env_)
                                            : GetAttribute(*object, key->text(), env_)));
  return &storage;
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
  Value storage;
  KVCACHE_ASSIGN_OR_RETURN(const Value* value, Refer(*expression.parts[0], storage));
  KVCACHE_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  KVCACHE_ASSIGN_OR_RETURN(
      const bool passes, At(expression.place, ApplyTest(expression.name, *value, arguments, env_)));
  return Value::Bool(passes);
}

Result<Value> Interpreter::Concat(const Expression& expression) {
  MarkedText text;
  for (const ExpressionPtr& part : expression.parts) {
    Value storage;
    KVCACHE_ASSIGN_OR_RETURN(const Value* value, Refer(*part, storage));
    KVCACHE_ASSIGN_OR_RETURN(const MarkedText more,
                             At(expression.place, TextOf(*value, env_.budget)));
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
  Value storage[2];
  KVCACHE_ASSIGN_OR_RETURN(const Value* a, Refer(*expression.parts[0], storage[0]));
  KVCACHE_ASSIGN_OR_RETURN(const Value* b, Refer(*expression.parts[1], storage[1]));
  return At(expression.place, Operate(expression.name, *a, *b, env_.budget));
}

namespace {

Result<bool> CompareTwo(const std::string& name, const Value& a, const Value& b, Environment& env) {
  Budget& budget = env.budget;
  if (name == "==") return Equal(a, b, budget);
  if (name == "<") return Less(a, b, budget);
  if (name == ">") return Less(b, a, budget);
  if (name == "in") return Contains(b, a, env);
  if (name == "!=" || name == "not in") {
    KVCACHE_ASSIGN_OR_RETURN(const bool is,
                             name == "!=" ? Equal(a, b, budget) : Contains(b, a, env));
    return !is;
  }
  KVCACHE_ASSIGN_OR_RETURN(const bool strictly,
                           name == "<=" ? Less(a, b, budget) : Less(b, a, budget));
  return strictly ? Result<bool>(true) : Equal(a, b, budget);
}

}  // namespace

Result<Value> Interpreter::Compare(const Expression& expression) {
  Value storage[2];
  KVCACHE_ASSIGN_OR_RETURN(const Value* left, Refer(*expression.parts[0], storage[0]));
  for (std::size_t i = 0; i < expression.names.size(); ++i) {
    Value& free = storage[(i + 1) % 2];
    KVCACHE_ASSIGN_OR_RETURN(const Value* right, Refer(*expression.parts[i + 1], free));
    KVCACHE_ASSIGN_OR_RETURN(
        const bool holds,
        At(expression.place, CompareTwo(expression.names[i], *left, *right, env_)));
    if (!holds) return Value::Bool(false);
    left = right;
  }
  return Value::Bool(true);
}

Result<Value> Interpreter::AndOr(const Expression& expression) {
  KVCACHE_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.parts[0]));
  if (left.IsTruthy() == (expression.kind == ExpressionKind::kOr)) return left;
  return Evaluate(*expression.parts[1]);
}

Result<Value> Interpreter::Conditional(const Expression& expression) {
  KVCACHE_ASSIGN_OR_RETURN(const bool condition, IsTrue(*expression.parts[0]));
  if (condition) return Evaluate(*expression.parts[1]);
  if (expression.parts[2]) return Evaluate(*expression.parts[2]);
  return Value::Missing("the condition of an inline if without else is false");
}

}  // namespace kvcache::jinja
