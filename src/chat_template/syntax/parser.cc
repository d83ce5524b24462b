#include "chat_template/syntax/parser.h"

#include <algorithm>
#include <initializer_list>

#include "base/errors.h"
#include "base/strings.h"
#include "chat_template/syntax/expression_parser.h"
#include "chat_template/syntax/literals.h"

namespace kvcache::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens)
      : tokens_(std::move(tokens)), expressions_(tokens_, parsed_.names, parsed_.symbols) {}

  Result<ParsedTemplate> Run() {
    KVCACHE_ASSIGN_OR_RETURN(parsed_.body, ParseBody({}));
    parsed_.literals = LiteralsOf(parsed_.body);
    return std::move(parsed_);
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  // Parses statements up to a tag whose name is one of `ends`, or up to the end of the template if
  // `ends` is empty. Consumes the "{%" of that tag, but not its name.
  Result<Body> ParseBody(Ends ends) {
    Body body;
    if (++depth_ > kMaxSyntaxDepth) {
      return TokenStream::NotSupported(
          tokens_.current().place,
          StrCat("nesting of tags deeper than ", kMaxSyntaxDepth, " levels"));
    }
    for (;;) {
      const Place place = tokens_.current().place;
      if (tokens_.Is(TokenType::kEnd)) break;
      if (tokens_.Is(TokenType::kData)) {
        body.emplace_back();
        body.back().place = place;
        body.back().value = Value::Literal(tokens_.Take().text);
        continue;
      }
      if (tokens_.Is(TokenType::kPrintBegin)) {
        body.emplace_back();
        KVCACHE_RETURN_IF_ERROR(Print(body.back()));
        continue;
      }
      tokens_.Skip();  // {%
      const bool ends_here =
          std::any_of(ends.begin(), ends.end(), [this](auto end) { return tokens_.IsName(end); });
      if (ends_here) {
        --depth_;
        return body;
      }
      body.emplace_back();
      body.back().place = place;
      KVCACHE_RETURN_IF_ERROR(Tag(body.back()));
    }
    --depth_;
    if (ends.size() == 0) return body;
    return tokens_.Unexpected(StrCat("'{% ", *(ends.end() - 1), " %}'"));
  }

  // Parses statements up to and including the closing tag.
  Result<Body> ParseBlock(std::string_view end) {
    KVCACHE_ASSIGN_OR_RETURN(Body body, ParseBody({end}));
    tokens_.Skip();
    KVCACHE_RETURN_IF_ERROR(tokens_.ExpectTagEnd());
    return body;
  }

  Status Print(Statement& statement) {
    statement.kind = StatementKind::kPrint;
    statement.place = tokens_.Take().place;
    KVCACHE_ASSIGN_OR_RETURN(statement.expression, expressions_.Tuple());
    if (!tokens_.Is(TokenType::kPrintEnd)) return tokens_.Unexpected("'}}'");
    tokens_.Skip();
    return Status::Ok();
  }

  Status Tag(Statement& statement) {
    if (!tokens_.Is(TokenType::kName)) return tokens_.Unexpected("a tag's name");
    const Token name = tokens_.Take();
    if (name.text == "if") return If(statement);
    if (name.text == "for") return For(statement);
    if (name.text == "set") return Set(statement);
    if (name.text == "macro") return Macro(statement);
    if (name.text == "call") return Call(statement);
    if (name.text == "filter") return Filter(statement);
    if (name.text == "with") return With(statement);
    if (name.text == "generation") return Generation(statement);
    if (name.text == "break") return Jump(statement, StatementKind::kBreak, name);
    if (name.text == "continue") return Jump(statement, StatementKind::kContinue, name);
    return Unknown(name);
  }

  static Status Unknown(const Token& name) {
    for (const char* known : {"block", "extends", "include", "import", "from", "do", "debug",
                              "autoescape", "trans", "pluralize", "print"}) {
      if (name.text == known) {
        return TokenStream::NotSupported(name.place, StrCat("the tag '", name.text, "'"));
      }
    }
    return TokenStream::SyntaxError(name.place, StrCat("tag ", Quoted(name.text), " is not known"));
  }

  Status If(Statement& statement) {
    statement.kind = StatementKind::kIf;
    for (bool more = true; more;) {
      Branch branch;
      KVCACHE_ASSIGN_OR_RETURN(branch.condition, expressions_.Tuple(false));
      KVCACHE_RETURN_IF_ERROR(tokens_.ExpectTagEnd());
      KVCACHE_ASSIGN_OR_RETURN(branch.body, ParseBody({"elif", "else", "endif"}));
      statement.branches.push_back(std::move(branch));
      more = tokens_.SkipName("elif");
    }
    if (tokens_.SkipName("else")) {
      KVCACHE_RETURN_IF_ERROR(tokens_.ExpectTagEnd());
      Branch branch;
      KVCACHE_ASSIGN_OR_RETURN(branch.body, ParseBody({"endif"}));
      statement.branches.push_back(std::move(branch));
    }
    tokens_.Skip();
    return tokens_.ExpectTagEnd();
  }

  Status For(Statement& statement) {
    statement.kind = StatementKind::kFor;
    KVCACHE_ASSIGN_OR_RETURN(statement.target,
                             expressions_.Target(ExpressionParser::Targets::kNames));
    if (!tokens_.SkipName("in")) return tokens_.Unexpected("'in'");
    KVCACHE_ASSIGN_OR_RETURN(statement.expression, expressions_.Tuple(false));
    if (tokens_.SkipName("if")) {
      KVCACHE_ASSIGN_OR_RETURN(statement.condition, expressions_.Expression());
    }
    if (tokens_.IsName("recursive")) {
      return TokenStream::NotSupported(tokens_.current().place, "a recursive loop");
    }
    KVCACHE_RETURN_IF_ERROR(tokens_.ExpectTagEnd());
    ++loops_;
    auto body = ParseBody({"else", "endfor"});
    --loops_;
    if (!body.ok()) return std::move(body).TakeStatus();
    statement.body = std::move(body).value();
    if (tokens_.SkipName("else")) {
      KVCACHE_RETURN_IF_ERROR(tokens_.ExpectTagEnd());
      KVCACHE_ASSIGN_OR_RETURN(statement.otherwise, ParseBody({"endfor"}));
    }
    tokens_.Skip();
    return tokens_.ExpectTagEnd();
  }

  Status Set(Statement& statement) {
    statement.kind = StatementKind::kSet;
    KVCACHE_ASSIGN_OR_RETURN(statement.target,
                             expressions_.Target(ExpressionParser::Targets::kNamesAndAttributes));
    if (tokens_.SkipOperator("=")) {
      KVCACHE_ASSIGN_OR_RETURN(statement.expression, expressions_.Tuple());
      return tokens_.ExpectTagEnd();
    }
    statement.kind = StatementKind::kSetBlock;
    if (tokens_.IsOperator("|")) {
      KVCACHE_ASSIGN_OR_RETURN(statement.expression, expressions_.Filters(nullptr));
    }
    KVCACHE_RETURN_IF_ERROR(tokens_.ExpectTagEnd());
    KVCACHE_ASSIGN_OR_RETURN(statement.body, ParseBlock("endset"));
    return Status::Ok();
  }

  Status Parameters(Statement& statement) {
    KVCACHE_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.SkipOperator(")")) {
      if (!statement.parameters.empty()) KVCACHE_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      Parameter parameter;
      const Place place = tokens_.current().place;
      KVCACHE_ASSIGN_OR_RETURN(parameter.name, tokens_.ExpectName());
      parameter.symbol = parsed_.symbols.Of(parameter.name);
      if (tokens_.SkipOperator("=")) {
        KVCACHE_ASSIGN_OR_RETURN(parameter.otherwise, expressions_.Expression());
      } else if (!statement.parameters.empty() && statement.parameters.back().otherwise) {
        return TokenStream::SyntaxError(place,
                                        "a parameter without a default follows one with a default");
      }
      statement.parameters.push_back(std::move(parameter));
    }
    return Status::Ok();
  }

  // Parses the body of a macro and records which of the special names it reads.
  Status MacroBody(Statement& statement, std::string_view end) {
    std::set<std::string, std::less<>> outer;
    outer.swap(parsed_.names);
    const int loops = std::exchange(loops_, 0);
    auto body = ParseBlock(end);
    loops_ = loops;
    outer.swap(parsed_.names);
    if (!body.ok()) return std::move(body).TakeStatus();
    statement.body = std::move(body).value();
    statement.uses_caller = outer.contains("caller");
    statement.uses_varargs = outer.contains("varargs");
    statement.uses_kwargs = outer.contains("kwargs");
    parsed_.names.merge(outer);
    return Status::Ok();
  }

  Status Macro(Statement& statement) {
    statement.kind = StatementKind::kMacro;
    KVCACHE_ASSIGN_OR_RETURN(statement.name, tokens_.ExpectName());
    statement.symbol = parsed_.symbols.Of(statement.name);
    KVCACHE_RETURN_IF_ERROR(Parameters(statement));
    KVCACHE_RETURN_IF_ERROR(tokens_.ExpectTagEnd());
    return MacroBody(statement, "endmacro");
  }

  Status Call(Statement& statement) {
    statement.kind = StatementKind::kCall;
    statement.name = "caller";
    if (tokens_.IsOperator("(")) KVCACHE_RETURN_IF_ERROR(Parameters(statement));
    KVCACHE_ASSIGN_OR_RETURN(statement.expression, expressions_.Expression());
    if (statement.expression->kind != ExpressionKind::kCall) {
      return TokenStream::SyntaxError(statement.place, "expected a macro call");
    }
    KVCACHE_RETURN_IF_ERROR(tokens_.ExpectTagEnd());
    return MacroBody(statement, "endcall");
  }

  Status Filter(Statement& statement) {
    statement.kind = StatementKind::kFilter;
    KVCACHE_ASSIGN_OR_RETURN(statement.expression, expressions_.Filters(nullptr));
    KVCACHE_RETURN_IF_ERROR(tokens_.ExpectTagEnd());
    KVCACHE_ASSIGN_OR_RETURN(statement.body, ParseBlock("endfilter"));
    return Status::Ok();
  }

  Status With(Statement& statement) {
    statement.kind = StatementKind::kWith;
    while (!tokens_.Is(TokenType::kTagEnd)) {
      if (!statement.assignments.empty()) KVCACHE_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      const Place place = tokens_.current().place;
      KVCACHE_ASSIGN_OR_RETURN(const std::string name, tokens_.ExpectName());
      auto target = std::make_unique<Expression>();
      target->kind = ExpressionKind::kName;
      target->place = place;
      target->name = name;
      target->symbol = parsed_.symbols.Of(name);
      KVCACHE_RETURN_IF_ERROR(tokens_.ExpectOperator("="));
      KVCACHE_ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.Expression());
      statement.assignments.emplace_back(std::move(target), std::move(value));
    }
    tokens_.Skip();
    KVCACHE_ASSIGN_OR_RETURN(statement.body, ParseBlock("endwith"));
    return Status::Ok();
  }

  Status Generation(Statement& statement) {
    statement.kind = StatementKind::kGeneration;
    KVCACHE_RETURN_IF_ERROR(tokens_.ExpectTagEnd());
    KVCACHE_ASSIGN_OR_RETURN(statement.body, ParseBlock("endgeneration"));
    return Status::Ok();
  }

  Status Jump(Statement& statement, StatementKind kind, const Token& name) {
    statement.kind = kind;
    if (loops_ == 0) {
      return TokenStream::SyntaxError(name.place, StrCat("'", name.text, "' outside of a loop"));
    }
    return tokens_.ExpectTagEnd();
  }

  ParsedTemplate parsed_;
  TokenStream tokens_;
  ExpressionParser expressions_;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

Result<ParsedTemplate> ParseTemplate(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return Unsupported(StrCat("the template has ", source.size(), " bytes; at most ",
                              kMaxSourceBytes, " are supported"));
  }
  KVCACHE_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace kvcache::jinja
