#include <utility>

#include "dialect/argument_reader.h"

namespace kvcache {
namespace {

constexpr std::string_view kStructure = "()[]{},:=";

// Returns whether a word is a number as JSON writes them.
bool IsNumber(const std::string& word) {
  const auto parsed = nlohmann::ordered_json::parse(word, nullptr, false);
  return parsed.is_number();
}

// Returns a text as JSON.
std::string Quoted(const std::string& text) {
  return nlohmann::ordered_json(text).dump(-1, ' ', false,
                                           nlohmann::ordered_json::error_handler_t::replace);
}

// Returns a word as JSON.
std::string ValueOf(const std::string& word) {
  if (word == "True" || word == "true") return "true";
  if (word == "False" || word == "false") return "false";
  if (word == "None" || word == "null" || word == "none") return "null";
  return IsNumber(word) ? word : Quoted(word);
}

std::size_t DigitsOf(char escape) {
  return escape == 'x' ? 2 : escape == 'u' ? 4 : escape == 'U' ? 8 : 0;
}

}  // namespace

LiteralArguments::LiteralArguments(std::string quote)
    : quote_(std::move(quote)), closers_(quote_.empty() ? ")" : "}") {}

bool LiteralArguments::Read(std::string_view& text, bool last, std::string* out) {
  bool wait = false;
  while (!text.empty() && !wait) {
    if (!end_.empty()) {
      InString(text, last, &wait, out);
      continue;
    }
    if (TakeQuote(text, last, &wait, out) || wait) continue;
    const char c = text[0];
    if (c == kEdge) return true;
    text.remove_prefix(1);
    const bool space = kWhiteSpace.find(c) != std::string_view::npos;
    if (kStructure.find(c) == std::string_view::npos) {
      if (!space || !word_.empty()) word_ += c;
      continue;
    }
    Structure(c, out);
    if (closers_.empty()) return true;
  }
  return false;
}

// A string begins at a quote, if no word has.
bool LiteralArguments::TakeQuote(std::string_view& text, bool last, bool* wait, std::string* out) {
  if (!word_.empty()) return false;
  if (python()) {
    if (text[0] != '"' && text[0] != '\'') return false;
    // Two quotes are an empty string, or the beginning of three.
    const std::string three(3, text[0]);
    if (Begins(text, three) && !last) {
      *wait = true;
      return false;
    }
    end_ = text.starts_with(three) ? three : three.substr(0, 1);
  } else {
    *wait = Begins(text, quote_) && !last;
    if (!text.starts_with(quote_)) return false;
    end_ = quote_;
  }
  text.remove_prefix(end_.size());
  word_.clear();
  BeginItem(out);
  *out += '"';
  return true;
}

void LiteralArguments::InString(std::string_view& text, bool last, bool* wait, std::string* out) {
  if (text.starts_with(end_)) {
    text.remove_prefix(std::exchange(end_, {}).size());
    *out += '"';
  } else if (python() && text[0] == '\\') {
    *wait = !TakeEscape(text, last, out);
  } else if (Begins(text, end_) && !last) {
    *wait = true;
  } else if (text[0] == kEdge) {
    end_.clear();
    *out += '"';
  } else {
    AppendEscaped(text[0], out);
    text.remove_prefix(1);
  }
}

bool LiteralArguments::TakeEscape(std::string_view& text, bool last, std::string* out) {
  if (text.size() < 2) {
    if (last) text = {};
    return false;
  }
  const std::size_t digits = DigitsOf(text[1]);
  if (text.size() < 2 + digits) {
    if (last) text = {};
    return false;
  }
  if (digits > 0) {
    char32_t character = 0;
    for (const char c : text.substr(2, digits)) {
      const char low = static_cast<char>(c | 0x20);
      const bool letter = low >= 'a' && low <= 'f';
      character = character * 16 + static_cast<char32_t>(letter ? low - 'a' + 10 : (c - '0') & 15);
    }
    std::string bytes;
    AppendCharacter(character < 0x110000 ? character : 0xfffd, &bytes);
    for (const char c : bytes) AppendEscaped(c, out);
  } else if (text[1] != '\n') {
    constexpr std::string_view kLetters = "abfnrtv0";
    constexpr std::string_view kMeant("\a\b\f\n\r\t\v\0", 8);
    const std::size_t at = kLetters.find(text[1]);
    if (at == std::string_view::npos && text[1] != '\\' && text[1] != '\'' && text[1] != '"') {
      AppendEscaped('\\', out);
    }
    AppendEscaped(at == std::string_view::npos ? text[1] : kMeant[at], out);
  }
  text.remove_prefix(2 + digits);
  return true;
}

void LiteralArguments::BeginItem(std::string* out) {
  if (closers_.size() == 1 && !std::exchange(opened_, true)) *out += '{';
  if (std::exchange(comma_, false)) *out += ", ";
}

void LiteralArguments::EndWord(bool key, std::string* out) {
  const std::string word(Trimmed(word_));
  word_.clear();
  if (word.empty()) return;
  BeginItem(out);
  *out += key ? Quoted(word) : ValueOf(word);
}

void LiteralArguments::Structure(char c, std::string* out) {
  const bool in_object = closers_.size() == 1 || closers_.back() == '}';
  if (c == ':' || c == '=') {
    const bool separates = in_object && key_;
    if (!separates) {
      word_ += c;
      return;
    }
    EndWord(true, out);
    *out += ": ";
    key_ = false;
  } else if (c == ',') {
    EndWord(false, out);
    comma_ = true;
    key_ = in_object;
  } else if (c == '(' || c == '[' || c == '{') {
    BeginItem(out);
    *out += c == '{' ? '{' : '[';
    closers_ += c == '{' ? '}' : c == '[' ? ']' : ')';
    key_ = c == '{';
  } else {
    EndWord(false, out);
    comma_ = false;
    key_ = false;
    if (closers_.size() == 1) BeginItem(out);
    *out += in_object ? '}' : ']';
    closers_.pop_back();
  }
}

std::string LiteralArguments::Closing() const {
  std::string closing = end_.empty() ? "" : "\"";
  for (std::size_t i = closers_.size(); i-- > 0;) {
    closing += i == 0 || closers_[i] == '}' ? '}' : ']';
  }
  return opened_ ? closing : "{}";
}

}  // namespace kvcache
