#include "chat_template/syntax/literals.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace kvcache::jinja {
namespace {

// String methods whose arguments never become part of the result.
constexpr std::string_view kSearchMethods[] = {
    "startswith", "endswith", "find",   "rfind",  "index",        "count",        "split",
    "rsplit",     "strip",    "lstrip", "rstrip", "removeprefix", "removesuffix",
};

bool OnlyReadsArguments(const Expression& call) {
  if (call.kind != ExpressionKind::kCall || call.parts.empty() || !call.parts[0]) return false;
  const Expression& method = *call.parts[0];
  return method.kind == ExpressionKind::kAttribute &&
         std::find(std::begin(kSearchMethods), std::end(kSearchMethods), method.name) !=
             std::end(kSearchMethods);
}

// Collects literals by walking the tree, whose depth the parser bounds.
class Collector {
 public:
  std::vector<std::string> Run(const Body& body) {
    Visit(body);
    EndLiteral();
    return std::move(literals_);
  }

 private:
  void EndLiteral() {
    if (!run_.empty()) literals_.push_back(std::exchange(run_, {}));
  }

  void Visit(const Body& body) {
    for (const Statement& statement : body) Visit(statement);
  }

  void Visit(const Statement& statement) {
    if (statement.kind == StatementKind::kData) run_ += statement.value.bytes();
    if (statement.kind == StatementKind::kPrint) {
      VisitPrinted(*statement.expression);
    } else {
      VisitSeparate(statement.expression);
    }
    VisitRead(statement.condition);
    for (const Parameter& parameter : statement.parameters) VisitSeparate(parameter.otherwise);
    for (const auto& [target, value] : statement.assignments) VisitSeparate(value);
    for (const Branch& branch : statement.branches) {
      VisitRead(branch.condition);
      Visit(branch.body);
    }
    Visit(statement.body);
    Visit(statement.otherwise);
  }

  // Visits an expression whose text continues what is printed before it.
  void VisitPrinted(const Expression& expression) {
    const bool joins = expression.kind == ExpressionKind::kConcat ||
                       (expression.kind == ExpressionKind::kBinary && expression.name == "+");
    if (expression.kind == ExpressionKind::kConstant && expression.value.IsText()) {
      run_ += expression.value.bytes();
    } else if (joins) {
      for (const ExpressionPtr& part : expression.parts) VisitPrinted(*part);
    } else {
      EndLiteral();
      VisitParts(expression);
    }
  }

  // Visits an expression that is not printed in this place.
  void VisitSeparate(const ExpressionPtr& expression) {
    if (!expression) return;
    std::string outer = std::exchange(run_, {});
    VisitPrinted(*expression);
    EndLiteral();
    run_ = std::move(outer);
  }

  // Visits an expression that is only compared or tested, so the template does not write its
  // strings. It may write arguments of calls: a macro can store them in a namespace.
  void VisitRead(const ExpressionPtr& expression) {
    if (!expression || expression->kind == ExpressionKind::kConstant) return;
    if (expression->kind == ExpressionKind::kCall && !OnlyReadsArguments(*expression)) {
      return VisitSeparate(expression);
    }
    for (const ExpressionPtr& part : expression->parts) VisitRead(part);
    for (const auto& [name, value] : expression->named) VisitRead(value);
    VisitRead(expression->rest);
    VisitRead(expression->named_rest);
  }

  // Returns whether part `i` never becomes part of the expression's value.
  static bool IsOnlyRead(const Expression& expression, std::size_t i) {
    switch (expression.kind) {
      case ExpressionKind::kCompare:
      case ExpressionKind::kTest:
      case ExpressionKind::kNot: return true;
      case ExpressionKind::kItem:
      case ExpressionKind::kSlice: return i > 0;
      case ExpressionKind::kConditional: return i == 0;
      case ExpressionKind::kCall: return i > 0 && OnlyReadsArguments(expression);
      default: return false;
    }
  }

  void VisitParts(const Expression& expression) {
    for (std::size_t i = 0; i < expression.parts.size(); ++i) {
      if (IsOnlyRead(expression, i)) {
        VisitRead(expression.parts[i]);
      } else {
        VisitSeparate(expression.parts[i]);
      }
    }
    for (const auto& [name, value] : expression.named) {
      literals_.push_back(name);  // kwargs and dict() turn it into a string
      VisitSeparate(value);
    }
    VisitSeparate(expression.rest);
    VisitSeparate(expression.named_rest);
  }

  std::vector<std::string> literals_;
  std::string run_;
};

}  // namespace

std::vector<std::string> LiteralsOf(const Body& body) {
  return Collector().Run(body);
}

}  // namespace kvcache::jinja
