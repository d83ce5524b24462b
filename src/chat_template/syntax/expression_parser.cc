#include "chat_template/syntax/expression_parser.h"

#include <algorithm>
#include <charconv>

#include "base/errors.h"
#include "base/strings.h"
#include "chat_template/syntax/parser.h"

namespace kvcache::jinja {
namespace {

using Kind = ExpressionKind;
using Node = struct Expression;

Status NestsTooDeep(Place place) {
  return Unsupported(StrCat(PlaceText(place), ": expressions are nested deeper than ",
                            kMaxSyntaxDepth, " levels"));
}

std::vector<ExpressionPtr> Parts(ExpressionPtr a, ExpressionPtr b = nullptr) {
  std::vector<ExpressionPtr> parts;
  parts.push_back(std::move(a));
  if (b) parts.push_back(std::move(b));
  return parts;
}

// Counts a level of recursion during its lifetime.
class Level {
 public:
  explicit Level(int& depth) : depth_(++depth) {}
  ~Level() { --depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  bool TooDeep() const { return depth_ > kMaxSyntaxDepth; }

 private:
  int& depth_;
};

}  // namespace

Status ExpressionParser::Finish(Node& node) const {
  const auto include = [&node](const ExpressionPtr& part) {
    if (part) node.depth = std::max(node.depth, part->depth + 1);
  };
  for (const ExpressionPtr& part : node.parts) include(part);
  for (const auto& [name, part] : node.named) include(part);
  include(node.rest);
  include(node.named_rest);
  return node.depth > kMaxSyntaxDepth ? NestsTooDeep(node.place) : Status::Ok();
}

ExpressionParser::Parsed ExpressionParser::Make(ExpressionKind kind, Place place,
                                                std::vector<ExpressionPtr> parts,
                                                std::string name) {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->place = place;
  node->name = std::move(name);
  node->parts = std::move(parts);
  KVCACHE_RETURN_IF_ERROR(Finish(*node));
  return node;
}

ExpressionParser::Parsed ExpressionParser::MakeOf(ExpressionKind kind, Place place, ExpressionPtr a,
                                                  ExpressionPtr b, std::string name) {
  return Make(kind, place, Parts(std::move(a), std::move(b)), std::move(name));
}

ExpressionParser::Parsed ExpressionParser::Expression() {
  const Level level(depth_);
  if (level.TooDeep()) return NestsTooDeep(tokens_.current().place);
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr value, Or());
  while (tokens_.IsName("if")) {
    const Place place = tokens_.Take().place;
    std::vector<ExpressionPtr> parts(3);
    KVCACHE_ASSIGN_OR_RETURN(parts[0], Or());
    parts[1] = std::move(value);
    if (tokens_.SkipName("else")) {
      KVCACHE_ASSIGN_OR_RETURN(parts[2], Expression());
    }
    KVCACHE_ASSIGN_OR_RETURN(value, Make(Kind::kConditional, place, std::move(parts)));
  }
  return value;
}

ExpressionParser::Parsed ExpressionParser::LeftToRight(Operand operand, ExpressionKind kind,
                                                       Signs signs) {
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*operand)());
  const TokenType type = kind == Kind::kBinary ? TokenType::kOperator : TokenType::kName;
  while (tokens_.Is(type) &&
         std::find(signs.begin(), signs.end(), tokens_.current().text) != signs.end()) {
    Token sign = tokens_.Take();
    KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*operand)());
    KVCACHE_ASSIGN_OR_RETURN(
        left, MakeOf(kind, sign.place, std::move(left), std::move(right), std::move(sign.text)));
  }
  return left;
}

ExpressionParser::Parsed ExpressionParser::Or() {
  return LeftToRight(&ExpressionParser::And, Kind::kOr, {"or"});
}

ExpressionParser::Parsed ExpressionParser::And() {
  return LeftToRight(&ExpressionParser::Not, Kind::kAnd, {"and"});
}

ExpressionParser::Parsed ExpressionParser::Not() {
  if (!tokens_.IsName("not")) return Compare();
  const Level level(depth_);
  if (level.TooDeep()) return NestsTooDeep(tokens_.current().place);
  const Place place = tokens_.Take().place;
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr operand, Not());
  return MakeOf(Kind::kNot, place, std::move(operand));
}

ExpressionParser::Parsed ExpressionParser::Compare() {
  constexpr std::string_view kOrders[] = {"==", "!=", "<", "<=", ">", ">="};
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr first, Sum());
  const Place place = tokens_.current().place;
  std::vector<ExpressionPtr> parts = Parts(std::move(first));
  std::vector<std::string> names;
  for (;;) {
    if (tokens_.Is(TokenType::kOperator) &&
        std::find(std::begin(kOrders), std::end(kOrders), tokens_.current().text) !=
            std::end(kOrders)) {
      names.push_back(tokens_.Take().text);
    } else if (tokens_.SkipName("in")) {
      names.emplace_back("in");
    } else if (tokens_.IsName("not") && tokens_.next().type == TokenType::kName &&
               tokens_.next().text == "in") {
      tokens_.Skip();
      tokens_.Skip();
      names.emplace_back("not in");
    } else {
      break;
    }
    KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr part, Sum());
    parts.push_back(std::move(part));
  }
  if (names.empty()) return std::move(parts[0]);
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr node, Make(Kind::kCompare, place, std::move(parts)));
  node->names = std::move(names);
  return node;
}

ExpressionParser::Parsed ExpressionParser::Sum() {
  return LeftToRight(&ExpressionParser::Concat, Kind::kBinary, {"+", "-"});
}

ExpressionParser::Parsed ExpressionParser::Concat() {
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr first, Product());
  if (!tokens_.IsOperator("~")) return first;
  const Place place = tokens_.current().place;
  std::vector<ExpressionPtr> parts = Parts(std::move(first));
  while (tokens_.SkipOperator("~")) {
    KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr part, Product());
    parts.push_back(std::move(part));
  }
  return Make(Kind::kConcat, place, std::move(parts));
}

ExpressionParser::Parsed ExpressionParser::Product() {
  return LeftToRight(&ExpressionParser::Power, Kind::kBinary, {"*", "/", "//", "%"});
}

ExpressionParser::Parsed ExpressionParser::Power() {
  return LeftToRight(&ExpressionParser::Unary, Kind::kBinary, {"**"});
}

ExpressionParser::Parsed ExpressionParser::Unary() {
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr operand, UnaryWithoutFilters());
  return FiltersAndTests(std::move(operand));
}

ExpressionParser::Parsed ExpressionParser::UnaryWithoutFilters() {
  const Level level(depth_);
  if (level.TooDeep()) return NestsTooDeep(tokens_.current().place);
  if (tokens_.IsOperator("-") || tokens_.IsOperator("+")) {
    Token sign = tokens_.Take();
    KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr operand, UnaryWithoutFilters());
    KVCACHE_ASSIGN_OR_RETURN(operand, MakeOf(Kind::kUnary, sign.place, std::move(operand), nullptr,
                                             std::move(sign.text)));
    return Postfix(std::move(operand));
  }
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr operand, Primary());
  return Postfix(std::move(operand));
}

ExpressionParser::Parsed ExpressionParser::FiltersAndTests(ExpressionPtr operand) {
  for (;;) {
    if (tokens_.IsOperator("|")) {
      KVCACHE_ASSIGN_OR_RETURN(operand, Filter(std::move(operand)));
    } else if (tokens_.IsName("is")) {
      KVCACHE_ASSIGN_OR_RETURN(operand, Test(std::move(operand)));
    } else if (tokens_.IsOperator("(")) {
      KVCACHE_ASSIGN_OR_RETURN(operand, CallOf(std::move(operand)));
    } else {
      return operand;
    }
  }
}

ExpressionParser::Parsed ExpressionParser::Filters(ExpressionPtr input) {
  while (tokens_.IsOperator("|") || !input) {
    KVCACHE_ASSIGN_OR_RETURN(input, Filter(std::move(input)));
  }
  return input;
}

// Parses a filter. The first filter of a filter block has no "|".
ExpressionParser::Parsed ExpressionParser::Filter(ExpressionPtr input) {
  (void)tokens_.SkipOperator("|");
  const Place place = tokens_.current().place;
  KVCACHE_ASSIGN_OR_RETURN(std::string name, DottedName());
  std::vector<ExpressionPtr> parts;
  parts.push_back(std::move(input));
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr node,
                           Make(Kind::kFilter, place, std::move(parts), std::move(name)));
  if (tokens_.IsOperator("(")) KVCACHE_RETURN_IF_ERROR(Call(*node));
  return node;
}

ExpressionParser::Parsed ExpressionParser::Test(ExpressionPtr operand) {
  const Place place = tokens_.Take().place;
  const bool negated = tokens_.SkipName("not");
  KVCACHE_ASSIGN_OR_RETURN(std::string name, DottedName());
  KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr node,
                           MakeOf(Kind::kTest, place, std::move(operand), nullptr, name));
  const Token& now = tokens_.current();
  const bool is_name = now.type == TokenType::kName && now.text != "else" && now.text != "or" &&
                       now.text != "and" && now.text != "if" && now.text != "not" &&
                       now.text != "in";
  if (tokens_.IsOperator("(")) {
    KVCACHE_RETURN_IF_ERROR(Call(*node));
  } else if (tokens_.IsName("is")) {
    return TokenStream::SyntaxError(now.place, "a test cannot follow a test; use 'and'");
  } else if (is_name || now.type == TokenType::kText || now.type == TokenType::kInteger ||
             now.type == TokenType::kFloat || tokens_.IsOperator("[") || tokens_.IsOperator("{")) {
    KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr argument, Primary());
    KVCACHE_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
    node->parts.push_back(std::move(argument));
    KVCACHE_RETURN_IF_ERROR(Finish(*node));
  }
  return negated ? MakeOf(Kind::kNot, place, std::move(node)) : std::move(node);
}

Result<std::string> ExpressionParser::DottedName() {
  KVCACHE_ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
  while (tokens_.SkipOperator(".")) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string part, tokens_.ExpectName());
    name += "." + part;
  }
  return name;
}

}  // namespace kvcache::jinja
