#include "tokenizer/wordpiece/wordpiece_tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "tokenizer/escaped_space.h"
#include "tokenizer/unicode/unicode_class.h"
#include "tokenizer/unicode/unicode_fold.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache {
namespace {

constexpr std::size_t kMaxWordCharacters = 100;  // as in the published code
constexpr std::uint32_t kReplacement = 0xFFFD;

VocabularyDefaults WordPieceDefaults() {
  return {.ids = {.bos = 101, .eos = kNoToken, .unknown = 100, .separator = 102, .padding = 0},
          .add_bos = true,
          .add_eos = true,
          .add_space_prefix = false};
}

// The characters that the published code calls Chinese. 2B820 to 2B91F is missing there, too.
bool IsHan(std::uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

// Returns whether a character is a word of its own. ASCII symbols count as punctuation.
bool StandsAlone(std::uint32_t c) {
  const UnicodeClass kind = UnicodeClasses().ClassOf(c);
  return (kind & kPunctuation) != 0 || (c < 0x80 && (kind & kSymbol) != 0) || IsHan(c);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> WordPieceTokenizer::Make(const TokenizerData& data) {
  KVCACHE_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Make(data, WordPieceDefaults()));
  return std::unique_ptr<Tokenizer>(new WordPieceTokenizer(std::move(vocabulary), data));
}

WordPieceTokenizer::WordPieceTokenizer(Vocabulary vocabulary, const TokenizerData& data)
    : Tokenizer(std::move(vocabulary)),
      strip_accents_(data.strip_accents.value_or(true)),
      lowercase_(data.lowercase.value_or(true)) {
  for (std::int32_t token = 0; token < vocabulary_size(); ++token) {
    max_token_bytes_ = std::max(max_token_bytes_, this->vocabulary().text(token).size());
  }
}

void WordPieceTokenizer::EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const {
  std::string repaired;
  text = RepairUtf8(text, &repaired);
  Word word;
  const auto finish = [&] {
    if (word.characters > 0) EncodeWord(word, out);
    word = {};
  };
  const auto add = [&](std::uint32_t c) {
    const bool alone = StandsAlone(c);
    if (alone) finish();
    AppendUtf8(lowercase_ ? LowerCaseOf(c) : c, word.text);
    ++word.characters;
    if (alone) finish();
  };
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    const Utf8Character decoded = DecodeUtf8(at);
    at += decoded.bytes;
    const UnicodeClass kind = UnicodeClasses().ClassOf(decoded.code_point);
    if (kind == kWhite) {
      finish();
      continue;
    }
    if (kind == kOther || decoded.code_point == kReplacement) continue;
    for (const std::uint32_t part :
         strip_accents_ ? PartsOf(decoded.code_point) : CharacterParts{decoded.code_point}) {
      if (part != 0 && !(strip_accents_ && IsNonspacingMark(part))) add(part);
    }
  }
  finish();
}

void WordPieceTokenizer::EncodeWord(const Word& word, std::vector<std::int32_t>* out) const {
  const std::size_t before = out->size();
  const std::string spelled = std::string(kEscapedSpace) + word.text;
  std::string_view rest = word.characters > kMaxWordCharacters ? std::string_view() : spelled;
  while (!rest.empty()) {
    const std::int32_t token = LongestToken(rest);
    if (token == kNoToken) break;
    out->push_back(token);
    rest.remove_prefix(vocabulary().text(token).size());
  }
  if (rest.empty() && out->size() > before) return;
  out->resize(before);
  if (unknown() != kNoToken) out->push_back(unknown());
}

std::int32_t WordPieceTokenizer::LongestToken(std::string_view text) const {
  for (std::size_t bytes = std::min(text.size(), max_token_bytes_); bytes > 0; --bytes) {
    const std::int32_t token = vocabulary().Find(text.substr(0, bytes));
    if (token != kNoToken && vocabulary().CanBeMerged(token)) return token;
  }
  return kNoToken;
}

void WordPieceTokenizer::AppendText(std::int32_t token, std::string* out) const {
  AppendUnescaped(vocabulary().text(token), out);
}

}  // namespace kvcache
