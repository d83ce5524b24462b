#include "chat_template/lexer.h"

#include <cstring>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "chat_template/python_text.h"

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
    while (at_ < text_.size()) KVCACHE_RETURN_IF_ERROR(Next());
    Add(TokenType::kEnd, "", at_);
    return std::move(tokens_);
  }

 private:
  Status Next() {
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
    if (kind == '#') return Comment(open);
    if (kind == '%' && AtWord("raw")) return Raw(open);
    Add(kind == '%' ? TokenType::kTagBegin : TokenType::kPrintBegin, text_.substr(open, 2), open);
    KVCACHE_RETURN_IF_ERROR(Inside(open, kind));
    line_starts_ = at_ > 0 && text_[at_ - 1] == '\n';
    return Status::Ok();
  }

  // "{{", "{%" or "{#".
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

  // Where the text before the tag at `open` ends, once white space is taken off.
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

  // At the end of a tag or comment, with its sign: what follows of white space goes with it.
  std::optional<std::size_t> Closing(std::size_t at, std::string_view mark, bool trims) const {
    const char sign = Sign(at);
    const std::size_t begin = at + (sign != 0 ? 1 : 0);
    if (text_.substr(begin, mark.size()) != mark) return std::nullopt;
    if (sign == '+' && !trims) return std::nullopt;  // "+}}" is an operator and an end
    std::size_t end = begin + mark.size();
    if (sign == '-') {
      return end + StripRange(text_.substr(end), Sides::kLeft, StripSet::kSpace).begin;
    }
    if (sign == 0 && trims && end < text_.size() && text_[end] == '\n') ++end;
    return end;
  }

  Status Comment(std::size_t open) {
    for (std::size_t at = at_; at < text_.size(); ++at) {
      if (std::strchr("-+#", text_[at]) == nullptr) continue;
      if (const auto end = Closing(at, "#}", true)) {
        at_ = *end;
        line_starts_ = text_[at_ - 1] == '\n';
        return Status::Ok();
      }
    }
    return Wrong(open, "a comment does not end");
  }

  std::size_t SkipSpace(std::size_t at) const {
    return at + StripRange(text_.substr(at), Sides::kLeft, StripSet::kSpace).begin;
  }

  // Whether a tag of this one word is here; "+%}" ends endraw, but not raw.
  bool AtWord(std::string_view word) const {
    const std::size_t at = SkipSpace(at_);
    if (text_.substr(at, word.size()) != word) return false;
    const std::size_t end = SkipSpace(at + word.size());
    return text_.substr(end, 2) == "%}" || text_.substr(end, 3) == "-%}" ||
           (word == "endraw" && text_.substr(end, 3) == "+%}");
  }

  // {% raw %} … {% endraw %}: text as it stands.
  Status Raw(std::size_t open) {
    const std::size_t end = SkipSpace(SkipSpace(at_) + 3);
    at_ = *Closing(end, "%}", true);
    if (text_[end] == '%') at_ = end + 2;  // the newline after it stays
    for (std::size_t at = at_; (at = text_.find("{%", at)) != std::string_view::npos; at += 2) {
      const char sign = Sign(at + 2);
      const std::size_t begin = at_;
      line_starts_ = false;
      const std::size_t data_end = DataEnd(at, sign, '%');
      at_ = at + 2 + (sign != 0 ? 1 : 0);
      if (AtWord("endraw")) {
        AddData(begin, data_end);
        at_ = *Closing(SkipSpace(SkipSpace(at_) + 6), "%}", true);
        line_starts_ = text_[at_ - 1] == '\n';
        return Status::Ok();
      }
      at_ = begin;
    }
    return Wrong(open, "a raw block does not end");
  }

  // The tokens of a tag up to its end.
  Status Inside(std::size_t open, char kind) {
    const std::string_view mark = kind == '%' ? "%}" : "}}";
    std::string brackets;
    while (at_ < text_.size()) {
      const std::size_t space = SkipSpace(at_);
      if (space != at_) {
        at_ = space;
        continue;
      }
      const auto end = brackets.empty() ? Closing(at_, mark, kind == '%') : std::nullopt;
      if (end) {
        Add(kind == '%' ? TokenType::kTagEnd : TokenType::kPrintEnd, mark, at_);
        at_ = *end;
        return Status::Ok();
      }
      KVCACHE_RETURN_IF_ERROR(Element(brackets));
    }
    return Wrong(open, StrCat("a ", text_.substr(open, 2), " does not end with ", mark));
  }

  Status Element(std::string& brackets) {
    const char c = text_[at_];
    if (c == '"' || c == '\'') return Text(c);
    if (IsDigit(c)) return Number();
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
    return Wrong(at_, StrCat("unexpected character ", Quoted(text_.substr(at_, 1))));
  }

  Status Balance(std::string_view mark, std::string& brackets) const {
    if (mark == "(") brackets += ')';
    if (mark == "[") brackets += ']';
    if (mark == "{") brackets += '}';
    if (mark != ")" && mark != "]" && mark != "}") return Status::Ok();
    if (brackets.empty()) return Wrong(at_, StrCat("unexpected ", Quoted(mark)));
    if (brackets.back() != mark[0]) {
      return Wrong(at_, StrCat("unexpected ", Quoted(mark), ", expected ",
                               Quoted(std::string_view(&brackets.back(), 1))));
    }
    brackets.pop_back();
    return Status::Ok();
  }

  std::size_t Digits(std::size_t at) const {
    while (at < text_.size() && (IsDigit(text_[at]) || text_[at] == '_')) ++at;
    return at;
  }

  Status Number() {
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

  Status Text(char quote) {
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
    if (at >= text_.size()) return Wrong(at_, "a text in quotes does not end");
    Add(TokenType::kText, value, at_);
    at_ = at + 1;
    return Status::Ok();
  }

  // Python's escapes, at the backslash. Returns what follows.
  Result<std::size_t> Escape(std::size_t at, std::string& value) const {
    constexpr std::string_view kNames = "\n\\'\"abfnrtv";
    constexpr std::string_view kMeanings("\0\\'\"\a\b\f\n\r\t\v", 11);
    const char c = text_[at + 1];
    if (c == '\n') return at + 2;
    if (c == 'x') return Code(at, 2, value);
    if (c == 'u') return Code(at, 4, value);
    if (c == 'U') return Code(at, 8, value);
    if (c == 'N') return Wrong(at, "a character by its name (\\N) is not offered");
    if (c >= '0' && c <= '7') {
      std::uint32_t code = 0;
      std::size_t end = at + 1;
      while (end < text_.size() && end < at + 4 && text_[end] >= '0' && text_[end] <= '7') {
        code = code * 8 + static_cast<std::uint32_t>(text_[end++] - '0');
      }
      AppendUtf8(code, value);
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

  Result<std::size_t> Code(std::size_t at, std::size_t digits, std::string& value) const {
    std::uint32_t code = 0;
    for (std::size_t i = at + 2; i < at + 2 + digits; ++i) {
      const int digit = i < text_.size() ? HexDigit(text_[i]) : -1;
      if (digit < 0) return Wrong(at, StrCat("an escape that needs ", digits, " hex digits"));
      code = code << 4 | static_cast<std::uint32_t>(digit);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      return Wrong(at, "an escape that is no character");
    }
    AppendUtf8(code, value);
    return at + 2 + digits;
  }

  void AddTo(TokenType type, std::size_t end) {
    Add(type, text_.substr(at_, end - at_), at_);
    at_ = end;
  }

  void Add(TokenType type, std::string_view text, std::size_t at) {
    tokens_.push_back({type, std::string(text), PlaceOf(at)});
  }

  // Called with growing offsets, nearly always.
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

  Status Wrong(std::size_t at, std::string_view what) const {
    return {StatusCode::kCorrupt, StrCat(PlaceText(PlaceOf(at)), ": ", what)};
  }

  const std::string source_;
  const std::string_view text_;
  std::size_t at_ = 0;
  bool line_starts_ = true;  // before at_ there is a line's end, or nothing
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
