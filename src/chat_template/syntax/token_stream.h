// The tokens of a template and the parser's position in them.
//
// Thread safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "chat_template/syntax/lexer.h"

namespace kvcache::jinja {

class TokenStream {
 public:
  // REQUIRES: the last token is kEnd.
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token Take() {
    Token token = current();
    Skip();
    return token;
  }
  void Skip() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }

  bool Is(TokenType type) const { return current().type == type; }
  bool IsOperator(std::string_view text) const {
    return Is(TokenType::kOperator) && current().text == text;
  }
  bool IsName(std::string_view text) const {
    return Is(TokenType::kName) && current().text == text;
  }

  bool SkipOperator(std::string_view text) { return SkipIf(IsOperator(text)); }
  bool SkipName(std::string_view text) { return SkipIf(IsName(text)); }

  Status ExpectOperator(std::string_view text) {
    return SkipOperator(text) ? Status::Ok() : Unexpected(StrCat("'", text, "'"));
  }
  Result<std::string> ExpectName() {
    if (!Is(TokenType::kName)) return Unexpected("a name");
    return Take().text;
  }
  Status ExpectTagEnd() {
    if (!Is(TokenType::kTagEnd)) return Unexpected("'%}'");
    Skip();
    return Status::Ok();
  }

  Status Unexpected(std::string_view expected) const {
    return SyntaxError(current().place, StrCat("expected ", expected, ", not ", Described()));
  }
  static Status SyntaxError(Place place, std::string_view what) {
    return {StatusCode::kCorrupt, StrCat(PlaceText(place), ": ", what)};
  }
  static Status NotSupported(Place place, std::string_view what) {
    return Unsupported(StrCat(PlaceText(place), ": ", what, " is not supported"));
  }

 private:
  bool SkipIf(bool matches) {
    if (matches) Skip();
    return matches;
  }
  std::string Described() const {
    if (Is(TokenType::kEnd)) return "the end of the template";
    if (Is(TokenType::kData)) return "text";
    return Quoted(current().text);
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace kvcache::jinja
