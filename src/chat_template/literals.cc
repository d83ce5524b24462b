#include "chat_template/literals.h"

#include <utility>

namespace kvcache::jinja {
namespace {

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
    Apart(statement.condition);
    for (const Parameter& parameter : statement.parameters) Apart(parameter.otherwise);
    for (const auto& [target, value] : statement.assignments) Apart(value);
    for (const Branch& branch : statement.branches) {
      Apart(branch.condition);
      Visit(branch.body);
    }
    Visit(statement.body);
    Visit(statement.otherwise);
  }

  // An expression whose text joins what is printed before and after it.
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

  // An expression that is not printed where it stands.
  void Apart(const ExpressionPtr& expression) {
    if (!expression) return;
    std::string outer = std::exchange(run_, {});
    Printed(*expression);
    Break();
    run_ = std::move(outer);
  }

  void Parts(const Expression& expression) {
    for (const ExpressionPtr& part : expression.parts) Apart(part);
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
