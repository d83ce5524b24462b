// ExpressionParser: parses operands (names, literals, subscripts, calls) and assignment targets.
#include "base/parse_number.h"
#include "base/strings.h"
#include "chat_template/syntax/expression_parser.h"
#include "chat_template/syntax/parser.h"

namespace kvcache::jinja {
namespace {

using Kind = ExpressionKind;
using Node = struct Expression;

ExpressionPtr Constant(Place place, Value value) {
  auto node = std::make_unique<Node>();
  node->place = place;
  node->value = std::move(value);
  return node;
}

}  // namespace

ExpressionParser::Parsed ExpressionParser::Primary() {
  const Place place = tokens_.current().place;
  switch (tokens_.current().type) {
    case TokenType::kName: return Name(tokens_.Take().text, place);
    case TokenType::kText: {
      std::string text;
      while (tokens_.Is(TokenType::kText)) text += tokens_.Take().text;
      return Constant(place, Value::Literal(text));
    }
    case TokenType::kInteger: return Integer();
    case TokenType::kFloat: {
      const auto number = ParseNumber<double>(tokens_.Take().text);
      return Constant(place, Value(number.value_or(0.0)));
    }
    case TokenType::kOperator:
      if (tokens_.IsOperator("(")) return Parenthesised();
      if (tokens_.IsOperator("[")) return ListLiteral();
      if (tokens_.IsOperator("{")) return DictLiteral();
      break;
    default: break;
  }
  return tokens_.Unexpected("a value");
}

ExpressionParser::Parsed ExpressionParser::Name(std::string name, Place place) {
  if (name == "true" || name == "True") return Constant(place, Value::Bool(true));
  if (name == "false" || name == "False") return Constant(place, Value::Bool(false));
  if (name == "none" || name == "None") return Constant(place, Value::None());
  names_.insert(name);
  const int symbol = symbols_.Of(name);
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr node, Make(Kind::kName, place, {}, std::move(name)));
  node->symbol = symbol;
  return node;
}

ExpressionParser::Parsed ExpressionParser::Integer() {
  const Token token = tokens_.Take();
  const auto number = ParseNumber<std::int64_t>(token.text);
  if (!number) {
    return TokenStream::NotSupported(
        token.place, StrCat("integer ", Quoted(token.text), " of more than 64 bits"));
  }
  if (token.text.size() > 1 && token.text[0] == '0' && *number != 0) {
    return TokenStream::SyntaxError(
        token.place, StrCat("integer ", token.text, " begins with 0; remove the zeros"));
  }
  return Constant(token.place, Value(*number));
}

Result<std::vector<ExpressionPtr>> ExpressionParser::Until(std::string_view closing) {
  std::vector<ExpressionPtr> parts;
  while (!tokens_.IsOperator(closing)) {
    if (!parts.empty()) {
      KVCACHE_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.IsOperator(closing)) break;
    }
    KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr part, Expression());
    parts.push_back(std::move(part));
  }
  tokens_.Skip();
  return parts;
}

// "(x)" is x, "(x,)" and "()" are tuples.
ExpressionParser::Parsed ExpressionParser::Parenthesised() {
  const Place place = tokens_.Take().place;
  if (tokens_.SkipOperator(")")) return Make(Kind::kTuple, place, {});
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr first, Expression());
  if (tokens_.SkipOperator(")")) return first;
  KVCACHE_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
  KVCACHE_ASSIGN_OR_RETURN(std::vector<ExpressionPtr> rest, Until(")"));
  rest.insert(rest.begin(), std::move(first));
  return Make(Kind::kTuple, place, std::move(rest));
}

ExpressionParser::Parsed ExpressionParser::ListLiteral() {
  const Place place = tokens_.Take().place;
  KVCACHE_ASSIGN_OR_RETURN(std::vector<ExpressionPtr> parts, Until("]"));
  return Make(Kind::kList, place, std::move(parts));
}

ExpressionParser::Parsed ExpressionParser::DictLiteral() {
  const Place place = tokens_.Take().place;
  std::vector<ExpressionPtr> parts;
  while (!tokens_.IsOperator("}")) {
    if (!parts.empty()) {
      KVCACHE_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.IsOperator("}")) break;
    }
    KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr key, Expression());
    KVCACHE_RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr value, Expression());
    parts.push_back(std::move(key));
    parts.push_back(std::move(value));
  }
  tokens_.Skip();
  return Make(Kind::kDict, place, std::move(parts));
}

ExpressionParser::Parsed ExpressionParser::Postfix(ExpressionPtr operand) {
  for (;;) {
    if (tokens_.IsOperator(".")) {
      KVCACHE_ASSIGN_OR_RETURN(operand, Dot(std::move(operand)));
    } else if (tokens_.IsOperator("[")) {
      KVCACHE_ASSIGN_OR_RETURN(operand, Subscript(std::move(operand)));
    } else if (tokens_.IsOperator("(")) {
      KVCACHE_ASSIGN_OR_RETURN(operand, CallOf(std::move(operand)));
    } else {
      return operand;
    }
  }
}

ExpressionParser::Parsed ExpressionParser::Dot(ExpressionPtr operand) {
  const Place place = tokens_.Take().place;
  if (tokens_.Is(TokenType::kInteger)) {
    KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr index, Integer());
    return MakeOf(Kind::kItem, place, std::move(operand), std::move(index));
  }
  KVCACHE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
  Value value = Value::Literal(name);
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr node, MakeOf(Kind::kAttribute, place, std::move(operand),
                                                      nullptr, std::move(name)));
  node->value = std::move(value);
  return node;
}

// Parses [index] or [begin:end:step]; each bound may be missing.
ExpressionParser::Parsed ExpressionParser::Subscript(ExpressionPtr operand) {
  const Place place = tokens_.Take().place;
  std::vector<ExpressionPtr> parts(4);
  parts[0] = std::move(operand);
  std::size_t part = 1;
  while (!tokens_.IsOperator("]")) {
    if (tokens_.SkipOperator(":")) {
      if (++part > 3) return tokens_.Unexpected("']'");
    } else if (parts[part]) {
      return tokens_.Unexpected("']'");
    } else {
      KVCACHE_ASSIGN_OR_RETURN(parts[part], Expression());
    }
  }
  tokens_.Skip();
  if (part > 1) return Make(Kind::kSlice, place, std::move(parts));
  if (!parts[1]) return TokenStream::SyntaxError(place, "expected an index");
  return MakeOf(Kind::kItem, place, std::move(parts[0]), std::move(parts[1]));
}

ExpressionParser::Parsed ExpressionParser::CallOf(ExpressionPtr function) {
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr call,
                           MakeOf(Kind::kCall, tokens_.current().place, std::move(function)));
  KVCACHE_RETURN_IF_ERROR(Call(*call));
  return call;
}

// Parses the arguments of a call, filter or test.
Status ExpressionParser::Call(Node& call) {
  tokens_.Skip();
  while (!tokens_.SkipOperator(")")) {
    const Place place = tokens_.current().place;
    if (tokens_.SkipOperator("*")) {
      if (call.rest || call.named_rest) return TokenStream::SyntaxError(place, "unexpected '*'");
      KVCACHE_ASSIGN_OR_RETURN(call.rest, Expression());
    } else if (tokens_.SkipOperator("**")) {
      if (call.named_rest) return TokenStream::SyntaxError(place, "unexpected '**'");
      KVCACHE_ASSIGN_OR_RETURN(call.named_rest, Expression());
    } else if (tokens_.Is(TokenType::kName) && tokens_.next().type == TokenType::kOperator &&
               tokens_.next().text == "=") {
      std::string name = tokens_.Take().text;
      tokens_.Skip();
      KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr value, Expression());
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty() || call.rest || call.named_rest) {
        return TokenStream::SyntaxError(place, "a positional argument follows a named argument");
      }
      KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr value, Expression());
      call.parts.push_back(std::move(value));
    }
    if (!tokens_.IsOperator(")")) KVCACHE_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
  }
  return Finish(call);
}

ExpressionParser::Parsed ExpressionParser::Tuple(bool with_condition) {
  const Place place = tokens_.current().place;
  const auto one = [&] { return with_condition ? Expression() : ExpressionWithoutCondition(); };
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr first, one());
  if (!tokens_.IsOperator(",")) return first;
  std::vector<ExpressionPtr> parts;
  parts.push_back(std::move(first));
  while (tokens_.SkipOperator(",")) {
    if (tokens_.Is(TokenType::kTagEnd) || tokens_.Is(TokenType::kPrintEnd)) break;
    KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr part, one());
    parts.push_back(std::move(part));
  }
  return Make(Kind::kTuple, place, std::move(parts));
}

ExpressionParser::Parsed ExpressionParser::TargetPart() {
  const Place place = tokens_.current().place;
  if (tokens_.SkipOperator("(")) {
    KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr inner, Target(Targets::kNames));
    KVCACHE_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    return inner;
  }
  KVCACHE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr target, Name(name, place));
  if (target->kind == Kind::kName) return target;
  return TokenStream::SyntaxError(place, StrCat("cannot assign to ", name));
}

ExpressionParser::Parsed ExpressionParser::Target(Targets targets) {
  const Place place = tokens_.current().place;
  if (++depth_ > kMaxSyntaxDepth) {
    --depth_;
    return TokenStream::NotSupported(
        place, StrCat("nesting of targets deeper than ", kMaxSyntaxDepth, " levels"));
  }
  auto first = TargetPart();
  --depth_;
  if (!first.ok()) return first;
  ExpressionPtr target = std::move(first).value();
  if (targets == Targets::kNamesAndAttributes && target->kind == Kind::kName &&
      tokens_.SkipOperator(".")) {
    KVCACHE_ASSIGN_OR_RETURN(std::string attribute, tokens_.ExpectName());
    return MakeOf(Kind::kAttribute, place, std::move(target), nullptr, std::move(attribute));
  }
  if (!tokens_.IsOperator(",")) return target;
  std::vector<ExpressionPtr> parts;
  parts.push_back(std::move(target));
  while (tokens_.SkipOperator(",")) {
    if (!tokens_.Is(TokenType::kName) && !tokens_.IsOperator("(")) break;
    KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr part, TargetPart());
    parts.push_back(std::move(part));
  }
  return Make(Kind::kTuple, place, std::move(parts));
}

}  // namespace kvcache::jinja
