// Tokens to expressions. Precedence from loose to tight: if-else, or, and, not, comparisons and
// in, + -, ~, * / // %, **, signs, then filters, tests, calls and subscripts behind an operand.
//
// Thread safety: one thread at a time.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "chat_template/syntax.h"
#include "chat_template/token_stream.h"

namespace kvcache::jinja {

class ExpressionParser {
 public:
  // Keeps the references; adds to `names` each name that is read.
  ExpressionParser(TokenStream& tokens, std::set<std::string, std::less<>>& names)
      : tokens_(tokens), names_(names) {}

  using Parsed = Result<ExpressionPtr>;

  // One expression; a comma ends it.
  Parsed Expression();
  // One without "if … else": what a for loop goes over.
  Parsed WithoutCondition() { return Or(); }
  // One, or several with commas between them, which are a tuple.
  Parsed Tuple(bool with_condition = true);
  // What can be assigned to: names, tuples of them, and with `spaces` name.attribute.
  enum class Spaces : std::uint8_t { kNo, kYes };
  Parsed Target(Spaces spaces);
  // "| name(…) | …" behind `input`, which may be null.
  Parsed Filters(ExpressionPtr input);

 private:
  Parsed Or();
  Parsed And();
  Parsed Not();
  Parsed Compare();
  Parsed Sum();
  Parsed Concat();
  Parsed Product();
  Parsed Power();
  Parsed Unary();
  Parsed UnaryWithoutFilters();
  Parsed Primary();
  Parsed Parenthesised();
  Parsed ListLiteral();
  Parsed DictLiteral();
  Parsed Integer();
  Parsed Postfix(ExpressionPtr operand);
  Parsed FiltersAndTests(ExpressionPtr operand);
  Parsed Dot(ExpressionPtr operand);
  Parsed Subscript(ExpressionPtr operand);
  Parsed Filter(ExpressionPtr input);
  Parsed Test(ExpressionPtr operand);
  Status Call(struct Expression& call);
  Result<std::string> DottedName();
  Parsed Name(std::string name, Place place);
  Parsed TargetPart();

  // A node of `parts` (some may be null). Errors: the tree is too deep.
  Parsed Make(ExpressionKind kind, Place place, std::vector<ExpressionPtr> parts,
              std::string name = {});
  Parsed MakeOf(ExpressionKind kind, Place place, ExpressionPtr a, ExpressionPtr b = nullptr,
                std::string name = {});
  // Comma-separated expressions up to the closing bracket, which is taken.
  Result<std::vector<ExpressionPtr>> Until(std::string_view closing);
  Status Finish(struct Expression& node) const;

  TokenStream& tokens_;
  std::set<std::string, std::less<>>& names_;
  int depth_ = 0;  // of the recursion
};

}  // namespace kvcache::jinja
