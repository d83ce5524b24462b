#include "chat_template/literals.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace kvcache::jinja {
namespace {

// Methods of texts whose arguments never reach their result.
constexpr std::string_view kLooking[] = {
    "startswith", "endswith", "find",   "rfind",  "index",        "count",        "split",
    "rsplit",     "strip",    "lstrip", "rstrip", "removeprefix", "removesuffix",
};

bool OnlyLooks(const Expression& call) {
  if (call.kind != ExpressionKind::kCall || call.parts.empty() || !call.parts[0]) return false;
  const Expression& method = *call.parts[0];
  return method.kind == ExpressionKind::kAttribute &&
         std::find(std::begin(kLooking), std::end(kLooking), method.name) != std::end(kLooking);
}

// Walks the tree; how deep it nests is bounded by the parser.
class Collector {
 public:
  std::vector<std::string> Run(const Body& body) {
    Visit(body);
    Break();
    return std::move(literals_);
  }

 private:
  void Break() {
    if (!run_.empty()) literals_.push_back(std::exchange(run_, {}));
  }

  void Visit(const Body& body) {
    for (const Statement& statement : body) Visit(statement);
  }

  void Visit(const Statement& statement) {
    if (statement.kind == StatementKind::kData) run_ += statement.value.bytes();
    if (statement.kind == StatementKind::kPrint) {
      Printed(*statement.expression);
    } else {
      Apart(statement.expression);
    }
    Looked(statement.condition);
    for (const Parameter& parameter : statement.parameters) Apart(parameter.otherwise);
    for (const auto& [target, value] : statement.assignments) Apart(value);
    for (const Branch& branch : statement.branches) {
      Looked(branch.condition);
      Visit(branch.body);
    }
    Visit(statement.body);
    Visit(statement.otherwise);
  }

  // Visits an expression whose text continues what is printed before it.
  void Printed(const Expression& expression) {
    const bool joins = expression.kind == ExpressionKind::kConcat ||
                       (expression.kind == ExpressionKind::kBinary && expression.name == "+");
    if (expression.kind == ExpressionKind::kConstant && expression.value.IsText()) {
      run_ += expression.value.bytes();
    } else if (joins) {
      for (const ExpressionPtr& part : expression.parts) Printed(*part);
    } else {
      Break();
      Parts(expression);
    }
  }

  // Visits an expression that is not printed in this place.
  void Apart(const ExpressionPtr& expression) {
    if (!expression) return;
    std::string outer = std::exchange(run_, {});
    Printed(*expression);
    Break();
    run_ = std::move(outer);
  }

  // Visits an expression that is only compared or tested, so its strings are not written. The
  // arguments of calls may be: a macro can store them in a namespace.
  void Looked(const ExpressionPtr& expression) {
    if (!expression || expression->kind == ExpressionKind::kConstant) return;
    if (expression->kind == ExpressionKind::kCall && !OnlyLooks(*expression)) {
      return Apart(expression);
    }
    for (const ExpressionPtr& part : expression->parts) Looked(part);
    for (const auto& [name, value] : expression->named) Looked(value);
    Looked(expression->rest);
    Looked(expression->named_rest);
  }

  // Whether part `i` never becomes part of the expression's value.
  static bool IsLooked(const Expression& expression, std::size_t i) {
    switch (expression.kind) {
      case ExpressionKind::kCompare:
      case ExpressionKind::kTest:
      case ExpressionKind::kNot: return true;
      case ExpressionKind::kItem:
      case ExpressionKind::kSlice: return i > 0;
      case ExpressionKind::kConditional: return i == 0;
      case ExpressionKind::kCall: return i > 0 && OnlyLooks(expression);
      default: return false;
    }
  }

  void Parts(const Expression& expression) {
    for (std::size_t i = 0; i < expression.parts.size(); ++i) {
      if (IsLooked(expression, i)) {
        Looked(expression.parts[i]);
      } else {
        Apart(expression.parts[i]);
      }
    }
    for (const auto& [name, value] : expression.named) {
      literals_.push_back(name);  // kwargs and dict() make it a text
      Apart(value);
    }
    Apart(expression.rest);
    Apart(expression.named_rest);
  }

  std::vector<std::string> literals_;
  std::string run_;
};

}  // namespace

std::vector<std::string> LiteralsOf(const Body& body) {
  return Collector().Run(body);
}

}  // namespace kvcache::jinja
