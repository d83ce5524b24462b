#include "chat_template/syntax/lexer.h"

#include <cstring>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "chat_template/value/python_text.h"

namespace kvcache::jinja {
namespace {

constexpr std::string_view kOperators[] = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           "<",  ">",  "=",  ".",  ":",  "|",  ",", ";"};

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool IsNameByte(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string UnifyNewlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(UnifyNewlines(source)), text_(source_) {}

  Result<std::vector<Token>> Run() {
    while (at_ < text_.size()) KVCACHE_RETURN_IF_ERROR(LexNext());
    Add(TokenType::kEnd, "", at_);
    return std::move(tokens_);
  }

 private:
  Status LexNext() {
    const std::size_t open = FindOpening(at_);
    if (open == std::string_view::npos) {
      AddData(at_, text_.size());
      at_ = text_.size();
      return Status::Ok();
    }
    const char kind = text_[open + 1];
    const char sign = Sign(open + 2);
    AddData(at_, DataEnd(open, sign, kind));
    at_ = open + 2 + (sign != 0 ? 1 : 0);
    if (kind == '#') return SkipComment(open);
    if (kind == '%' && AtTagWord("raw")) return LexRaw(open);
    Add(kind == '%' ? TokenType::kTagBegin : TokenType::kPrintBegin, text_.substr(open, 2), open);
    KVCACHE_RETURN_IF_ERROR(LexTag(open, kind));
    line_starts_ = at_ > 0 && text_[at_ - 1] == '\n';
    return Status::Ok();
  }

  // Returns the position of the next "{{", "{%" or "{#".
  std::size_t FindOpening(std::size_t from) const {
    for (;; ++from) {
      from = text_.find('{', from);
      if (from == std::string_view::npos || from + 1 >= text_.size()) {
        return std::string_view::npos;
      }
      if (std::strchr("{%#", text_[from + 1]) != nullptr && text_[from + 1] != 0) return from;
    }
  }

  char Sign(std::size_t at) const {
    if (at >= text_.size()) return 0;
    return text_[at] == '-' || text_[at] == '+' ? text_[at] : '\0';
  }

  // Returns where the text before the tag at `open` ends, after its white space is removed.
  std::size_t DataEnd(std::size_t open, char sign, char kind) const {
    const std::string_view data = text_.substr(at_, open - at_);
    if (sign == '-') return at_ + StripRange(data, Sides::kRight, StripSet::kSpace).end;
    if (sign == '+' || kind == '{') return open;
    const std::size_t newline = data.rfind('\n');
    if (newline == std::string_view::npos && !line_starts_) return open;
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    const TextRange rest = StripRange(data.substr(line), Sides::kLeft, StripSet::kSpace);
    return rest.begin == data.size() - line ? at_ + line : open;
  }

  void AddData(std::size_t begin, std::size_t end) {
    if (begin < end) Add(TokenType::kData, text_.substr(begin, end - begin), begin);
  }

  // Returns the end of the closing delimiter at `at`, with its sign and the white space that it
  // removes; nothing if there is no closing delimiter.
  std::optional<std::size_t> MatchClosing(std::size_t at, std::string_view delimiter,
                                          bool trims) const {
    const char sign = Sign(at);
    const std::size_t begin = at + (sign != 0 ? 1 : 0);
    if (text_.substr(begin, delimiter.size()) != delimiter) return std::nullopt;
    if (sign == '+' && !trims) return std::nullopt;  // "+}}" is an operator and a closing delimiter
    std::size_t end = begin + delimiter.size();
    if (sign == '-') {
      return end + StripRange(text_.substr(end), Sides::kLeft, StripSet::kSpace).begin;
    }
    if (sign == 0 && trims && end < text_.size() && text_[end] == '\n') ++end;
    return end;
  }

  Status SkipComment(std::size_t open) {
    for (std::size_t at = at_; at < text_.size(); ++at) {
      if (std::strchr("-+#", text_[at]) == nullptr) continue;
      if (const auto end = MatchClosing(at, "#}", true)) {
        at_ = *end;
        line_starts_ = text_[at_ - 1] == '\n';
        return Status::Ok();
      }
    }
    return SyntaxError(open, "the comment is not closed; expected '#}'");
  }

  std::size_t SkipSpace(std::size_t at) const {
    return at + StripRange(text_.substr(at), Sides::kLeft, StripSet::kSpace).begin;
  }

  // Returns whether a tag that consists of `word` is here. "+%}" closes endraw, but not raw.
  bool AtTagWord(std::string_view word) const {
    const std::size_t at = SkipSpace(at_);
    if (text_.substr(at, word.size()) != word) return false;
    const std::size_t end = SkipSpace(at + word.size());
    return text_.substr(end, 2) == "%}" || text_.substr(end, 3) == "-%}" ||
           (word == "endraw" && text_.substr(end, 3) == "+%}");
  }

  // {% raw %} … {% endraw %}: text without tags.
  Status LexRaw(std::size_t open) {
    const std::size_t end = SkipSpace(SkipSpace(at_) + 3);
    at_ = *MatchClosing(end, "%}", true);
    if (text_[end] == '%') at_ = end + 2;  // keep the newline after it
    for (std::size_t at = at_; (at = text_.find("{%", at)) != std::string_view::npos; at += 2) {
      const char sign = Sign(at + 2);
      const std::size_t begin = at_;
      line_starts_ = false;
      const std::size_t data_end = DataEnd(at, sign, '%');
      at_ = at + 2 + (sign != 0 ? 1 : 0);
      if (AtTagWord("endraw")) {
        AddData(begin, data_end);
        at_ = *MatchClosing(SkipSpace(SkipSpace(at_) + 6), "%}", true);
        line_starts_ = text_[at_ - 1] == '\n';
        return Status::Ok();
      }
      at_ = begin;
    }
    return SyntaxError(open, "the raw block is not closed; expected '{% endraw %}'");
  }

  // Adds the tokens of a tag up to its closing delimiter.
  Status LexTag(std::size_t open, char kind) {
    const std::string_view delimiter = kind == '%' ? "%}" : "}}";
    std::string brackets;
    while (at_ < text_.size()) {
      const std::size_t space = SkipSpace(at_);
      if (space != at_) {
        at_ = space;
        continue;
      }
      const auto end = brackets.empty() ? MatchClosing(at_, delimiter, kind == '%') : std::nullopt;
      if (end) {
        Add(kind == '%' ? TokenType::kTagEnd : TokenType::kPrintEnd, delimiter, at_);
        at_ = *end;
        return Status::Ok();
      }
      KVCACHE_RETURN_IF_ERROR(LexToken(brackets));
    }
    return SyntaxError(
        open, StrCat("'", text_.substr(open, 2), "' is not closed; expected '", delimiter, "'"));
  }

  Status LexToken(std::string& brackets) {
    const char c = text_[at_];
    if (c == '"' || c == '\'') return LexString(c);
    if (IsDigit(c)) return LexNumber();
    if (IsNameByte(c)) {
      std::size_t end = at_;
      while (end < text_.size() && IsNameByte(text_[end])) ++end;
      AddTo(TokenType::kName, end);
      return Status::Ok();
    }
    for (const std::string_view known : kOperators) {
      if (text_.substr(at_, known.size()) != known) continue;
      KVCACHE_RETURN_IF_ERROR(Balance(known, brackets));
      AddTo(TokenType::kOperator, at_ + known.size());
      return Status::Ok();
    }
    return SyntaxError(at_, StrCat("unexpected character ", Quoted(text_.substr(at_, 1))));
  }

  Status Balance(std::string_view bracket, std::string& brackets) const {
    if (bracket == "(") brackets += ')';
    if (bracket == "[") brackets += ']';
    if (bracket == "{") brackets += '}';
    if (bracket != ")" && bracket != "]" && bracket != "}") return Status::Ok();
    if (brackets.empty()) return SyntaxError(at_, StrCat("unexpected ", Quoted(bracket)));
    if (brackets.back() != bracket[0]) {
      return SyntaxError(at_, StrCat("unexpected ", Quoted(bracket), ", expected ",
                                     Quoted(std::string_view(&brackets.back(), 1))));
    }
    brackets.pop_back();
    return Status::Ok();
  }

  std::size_t Digits(std::size_t at) const {
    while (at < text_.size() && (IsDigit(text_[at]) || text_[at] == '_')) ++at;
    return at;
  }

  Status LexNumber() {
    std::size_t end = Digits(at_);
    TokenType type = TokenType::kInteger;
    const bool follows_dot = !tokens_.empty() && tokens_.back().type == TokenType::kOperator &&
                             tokens_.back().text == ".";
    if (!follows_dot && end + 1 < text_.size() && text_[end] == '.' && IsDigit(text_[end + 1])) {
      end = Digits(end + 1);
      type = TokenType::kFloat;
    }
    if (!follows_dot && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const std::size_t digits = end + 1 + (Sign(end + 1) != 0 ? 1 : 0);
      if (digits < text_.size() && IsDigit(text_[digits])) {
        end = Digits(digits);
        type = TokenType::kFloat;
      }
    }
    std::string text;
    for (const char c : text_.substr(at_, end - at_)) {
      if (c != '_') text += c;
    }
    Add(type, text, at_);
    at_ = end;
    return Status::Ok();
  }

  Status LexString(char quote) {
    std::string value;
    std::size_t at = at_ + 1;
    while (at < text_.size() && text_[at] != quote) {
      if (text_[at] != '\\') {
        value += text_[at++];
        continue;
      }
      if (at + 1 >= text_.size()) break;
      KVCACHE_ASSIGN_OR_RETURN(at, Escape(at, value));
    }
    if (at >= text_.size()) {
      return SyntaxError(at_, StrCat("the string is not closed; expected ", quote));
    }
    Add(TokenType::kText, value, at_);
    at_ = at + 1;
    return Status::Ok();
  }

  // Appends the character of the Python escape at `at`, a backslash. Returns the position after it.
  Result<std::size_t> Escape(std::size_t at, std::string& value) const {
    constexpr std::string_view kNames = "\n\\'\"abfnrtv";
    constexpr std::string_view kMeanings("\0\\'\"\a\b\f\n\r\t\v", 11);
    const char c = text_[at + 1];
    if (c == '\n') return at + 2;
    if (c == 'x') return HexEscape(at, 2, value);
    if (c == 'u') return HexEscape(at, 4, value);
    if (c == 'U') return HexEscape(at, 8, value);
    if (c == 'N') return SyntaxError(at, "the escape \\N is not supported; use \\u");
    if (c >= '0' && c <= '7') {
      std::uint32_t code = 0;
      std::size_t end = at + 1;
      while (end < text_.size() && end < at + 4 && text_[end] >= '0' && text_[end] <= '7') {
        code = code * 8 + static_cast<std::uint32_t>(text_[end++] - '0');
      }
      AppendCodePoint(code, value);
      return end;
    }
    const std::size_t known = kNames.find(c);
    if (known == std::string_view::npos) {
      value += '\\';
      return at + 1;  // the character itself follows
    }
    value += kMeanings[known];
    return at + 2;
  }

  Result<std::size_t> HexEscape(std::size_t at, std::size_t digits, std::string& value) const {
    std::uint32_t code = 0;
    for (std::size_t i = at + 2; i < at + 2 + digits; ++i) {
      const int digit = i < text_.size() ? HexDigit(text_[i]) : -1;
      if (digit < 0) return SyntaxError(at, StrCat("the escape needs ", digits, " hex digits"));
      code = code << 4 | static_cast<std::uint32_t>(digit);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      return SyntaxError(at, "the escape is not a Unicode character");
    }
    AppendCodePoint(code, value);
    return at + 2 + digits;
  }

  void AddTo(TokenType type, std::size_t end) {
    Add(type, text_.substr(at_, end - at_), at_);
    at_ = end;
  }

  void Add(TokenType type, std::string_view text, std::size_t at) {
    tokens_.push_back({type, std::string(text), PlaceOf(at)});
  }

  // Fast for ascending offsets, which nearly all calls pass.
  Place PlaceOf(std::size_t at) const {
    if (at < counted_) counted_ = line_begin_ = line_ = 0;
    for (; counted_ < at; ++counted_) {
      if (text_[counted_] != '\n') continue;
      ++line_;
      line_begin_ = counted_ + 1;
    }
    return {static_cast<std::uint32_t>(line_ + 1),
            static_cast<std::uint32_t>(at - line_begin_ + 1)};
  }

  Status SyntaxError(std::size_t at, std::string_view what) const {
    return {StatusCode::kCorrupt, StrCat(PlaceText(PlaceOf(at)), ": ", what)};
  }

  const std::string source_;
  const std::string_view text_;
  std::size_t at_ = 0;
  bool line_starts_ = true;  // at_ begins a line
  std::vector<Token> tokens_;
  mutable std::size_t counted_ = 0;
  mutable std::size_t line_ = 0;
  mutable std::size_t line_begin_ = 0;
};

}  // namespace

std::string PlaceText(Place place) {
  return StrCat("line ", place.line, ", column ", place.column);
}

Result<std::vector<Token>> Tokenize(std::string_view source) {
  return Lexer(source).Run();
}

}  // namespace kvcache::jinja
