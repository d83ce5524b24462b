// Parses tokens to expressions. Precedence from loose to tight: if-else, or, and, not, comparisons
// and in, + -, ~, * / // %, **, signs, then filters, tests, calls and subscripts after an operand.
//
// Thread safety: one thread at a time.
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template/syntax/syntax.h"
#include "chat_template/syntax/token_stream.h"

namespace kvcache::jinja {

class ExpressionParser {
 public:
  // Adds each name that is read to `names`, and each variable to `symbols`. The arguments must
  // outlive the parser.
  ExpressionParser(TokenStream& tokens, std::set<std::string, std::less<>>& names, Symbols& symbols)
      : tokens_(tokens), names_(names), symbols_(symbols) {}

  using Parsed = Result<ExpressionPtr>;

  // Parses one expression, up to a comma.
  Parsed Expression();
  // Parses one expression without "if … else", which a for loop iterates over.
  Parsed ExpressionWithoutCondition() { return Or(); }
  // Parses one expression, or a tuple of several with commas between them.
  Parsed Tuple(bool with_condition = true);
  // Parses an assignment target: a name, a tuple of names, or, if allowed, name.attribute.
  enum class Targets : std::uint8_t { kNames, kNamesAndAttributes };
  Parsed Target(Targets targets);
  // Parses "| name(…) | …" after `input`, which may be null.
  Parsed Filters(ExpressionPtr input);

 private:
  // Parses operands with signs between them. `signs`: operators of kBinary, names of other kinds.
  using Operand = Parsed (ExpressionParser::*)();
  using Signs = std::initializer_list<std::string_view>;
  Parsed LeftToRight(Operand operand, ExpressionKind kind, Signs signs);
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
  Parsed CallOf(ExpressionPtr function);
  Status Call(struct Expression& call);
  Result<std::string> DottedName();
  Parsed Name(std::string name, Place place);
  Parsed TargetPart();

  // Makes a node of `parts` (some may be null). Errors: the tree is too deep.
  Parsed Make(ExpressionKind kind, Place place, std::vector<ExpressionPtr> parts,
              std::string name = {});
  Parsed MakeOf(ExpressionKind kind, Place place, ExpressionPtr a, ExpressionPtr b = nullptr,
                std::string name = {});
  // Parses comma-separated expressions up to and including the closing bracket.
  Result<std::vector<ExpressionPtr>> Until(std::string_view closing);
  Status Finish(struct Expression& node) const;

  TokenStream& tokens_;
  std::set<std::string, std::less<>>& names_;
  Symbols& symbols_;
  int depth_ = 0;  // levels of recursion
};

}  // namespace kvcache::jinja
