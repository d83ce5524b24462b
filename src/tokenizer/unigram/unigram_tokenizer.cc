#include "tokenizer/unigram/unigram_tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "tokenizer/escaped_space.h"
#include "tokenizer/spm/spm_merge.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache {
namespace {

constexpr float kUnknownPenalty = 10;
constexpr std::size_t kMaxTokenBytes = 1024;  // a position of a text may look this far ahead

VocabularyDefaults Defaults() {
  return {.ids = {.eos = 1, .unknown = 2, .padding = 0},
          .add_bos = false,
          .add_eos = true,
          .add_space_prefix = false};
}

bool CanBeText(const Vocabulary& vocabulary, std::int32_t token) {
  return vocabulary.CanBeMerged(token) && vocabulary.kind(token) != TokenKind::kUndefined;
}

Status CheckLengths(const Vocabulary& vocabulary) {
  for (std::int32_t token = 0; token < vocabulary.size(); ++token) {
    const std::size_t bytes = vocabulary.text(token).size();
    if (bytes <= kMaxTokenBytes || !CanBeText(vocabulary, token)) continue;
    return Corrupt(StrCat("token ", token, " has ", bytes, " bytes; at most ", kMaxTokenBytes,
                          " are allowed in a vocabulary of kind 't5'"));
  }
  return Status::Ok();
}

// Omits tokens with a plain space: normalized text has U+2581 in place of each space.
ByteTrie MakeTrie(const Vocabulary& vocabulary) {
  std::vector<std::pair<std::string, std::int32_t>> texts;
  for (std::int32_t token = 0; token < vocabulary.size(); ++token) {
    const std::string_view text = vocabulary.text(token);
    if (!CanBeText(vocabulary, token) || text.empty()) continue;
    if (text.find(' ') != std::string_view::npos) continue;
    std::string unescaped;
    AppendUnescaped(text, &unescaped);
    texts.emplace_back(std::move(unescaped), token);
  }
  return ByteTrie(std::move(texts));
}

float UnknownScore(const Vocabulary& vocabulary) {
  float worst = std::numeric_limits<float>::max();
  for (std::int32_t token = 0; token < vocabulary.size(); ++token) {
    if (vocabulary.kind(token) == TokenKind::kNormal) {
      worst = std::min(worst, vocabulary.score(token));
    }
  }
  return worst - kUnknownPenalty;
}

}  // namespace

// Normalizes text to the spelling of the tokens, with a space for each U+2581.
class UnigramTokenizer::Normalizer {
 public:
  Normalizer(const UnigramTokenizer& tokenizer, std::string* out)
      : charsmap_(tokenizer.charsmap_),
        prefix_(tokenizer.vocabulary().add_space_prefix()),
        merge_(tokenizer.merge_spaces_),
        out_(*out) {}

  void Run(std::string_view text) {
    while (!text.empty()) {
      const std::size_t kept = KeptRun(text);
      if (kept > 0) Put(text.substr(0, kept));
      text.remove_prefix(kept);
      if (!text.empty()) text.remove_prefix(Step(text));
    }
  }

 private:
  // Returns how many bytes in front are ASCII that the charsmap does not replace.
  std::size_t KeptRun(std::string_view text) const {
    const auto ascii = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]) < 0x80; };
    std::size_t n = 0;
    while (n < text.size() && ascii(n) &&
           charsmap_.KeepsBeforeAscii(static_cast<std::uint8_t>(text[n]))) {
      ++n;
    }
    // A character outside ASCII, such as an accent, may change the character in front of it.
    return n > 0 && n < text.size() && !ascii(n) ? n - 1 : n;
  }

  // Normalizes one match or character and returns its bytes.
  std::size_t Step(std::string_view text) {
    const Charsmap::Match match = charsmap_.Longest(text);
    if (match.bytes > 0) {
      Put(match.replacement);
      return match.bytes;
    }
    const std::string_view character = SpmFirstCharacter(text);
    Put(character);
    return character.size();
  }

  void Put(std::string_view text) {
    while (!text.empty()) {
      const std::size_t word = std::min(text.find(' '), text.size());
      if (word > 0) PutWord(text.substr(0, word));
      if (word == text.size()) return;
      in_word_ = false;
      if (!merge_) out_.push_back(' ');
      text.remove_prefix(word + 1);
    }
  }

  void PutWord(std::string_view word) {
    if (!in_word_ && (merge_ || (prefix_ && !has_prefix_))) {
      out_.push_back(' ');
      has_prefix_ = true;
    }
    in_word_ = true;
    AppendUnescaped(word, &out_);
  }

  const Charsmap& charsmap_;
  const bool prefix_;
  const bool merge_;
  std::string& out_;
  bool in_word_ = false;
  bool has_prefix_ = false;
};

// The best paths to the positions of a text, beginning at the last position that all paths share.
class UnigramTokenizer::Lattice {
 public:
  Lattice(const UnigramTokenizer& tokenizer, std::string_view text, std::vector<std::int32_t>* out)
      : tokenizer_(tokenizer), text_(text), out_(*out) {}

  void Run() {
    paths_.push_back({0, 0, kNoToken});
    for (std::size_t at = 0; at < text_.size();) {
      const std::size_t length =
          std::min(SpmCharacterLength(static_cast<std::uint8_t>(text_[at])), text_.size() - at);
      Extend(at, length);
      at += length;
      if (at + 1 == begin_ + paths_.size()) Emit(at);
    }
  }

 private:
  struct Path {
    double score;
    std::uint32_t length;  // bytes of its last token
    std::int32_t token;
  };

  void Extend(std::size_t at, std::size_t length) {
    const double score = paths_[at - begin_].score;
    bool has_character = false;
    tokenizer_.trie_.ForEachPrefix(text_.substr(at), [&](std::int32_t token, std::size_t bytes) {
      has_character = has_character || bytes == length;
      const double sum = score + double{tokenizer_.scores_[static_cast<std::size_t>(token)]};
      Relax(at, bytes, token, sum);
    });
    if (!has_character) {
      Relax(at, length, tokenizer_.unknown(), score + double{tokenizer_.unknown_score_});
    }
  }

  void Relax(std::size_t at, std::size_t bytes, std::int32_t token, double score) {
    const std::size_t to = at + bytes - begin_;
    if (to >= paths_.size())
      paths_.resize(to + 1, {-std::numeric_limits<double>::max(), 1, kNoToken});
    if (score > paths_[to].score) paths_[to] = {score, static_cast<std::uint32_t>(bytes), token};
  }

  // Outputs the tokens up to `end`, the last position, which all paths share.
  void Emit(std::size_t end) {
    const std::size_t before = out_.size();
    const std::int32_t unknown = tokenizer_.unknown();
    for (std::size_t i = end - begin_; i > 0; i -= paths_[i].length) {
      out_.push_back(paths_[i].token);
    }
    std::reverse(out_.begin() + static_cast<std::ptrdiff_t>(before), out_.end());
    // Drop unknown tokens that follow an unknown token.
    std::size_t kept = before;
    for (std::size_t i = before; i < out_.size(); ++i) {
      const std::int32_t token = out_[i];
      const bool again = token == unknown && after_unknown_;
      after_unknown_ = token == unknown;
      if (!again && token != kNoToken) out_[kept++] = token;
    }
    out_.resize(kept);
    const double score = paths_[end - begin_].score;
    paths_.resize(1);
    paths_[0].score = score;
    begin_ = end;
  }

  const UnigramTokenizer& tokenizer_;
  std::string_view text_;
  std::vector<std::int32_t>& out_;
  std::vector<Path> paths_;  // the best to begin_, begin_ + 1, …, as far as tokens reach
  std::size_t begin_ = 0;
  bool after_unknown_ = false;
};

Result<std::unique_ptr<Tokenizer>> UnigramTokenizer::Make(const TokenizerData& data) {
  if (data.tokens.size() > static_cast<std::size_t>(ByteTrie::kMaxTokens)) {
    return Corrupt(StrCat("the vocabulary of kind 't5' has ", data.tokens.size(),
                          " tokens; at most ", ByteTrie::kMaxTokens, " are allowed"));
  }
  KVCACHE_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Make(data, Defaults()));
  KVCACHE_RETURN_IF_ERROR(CheckLengths(vocabulary));
  Charsmap charsmap;
  if (!data.charsmap.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(charsmap, Charsmap::Make(data.charsmap));
  }
  return std::unique_ptr<Tokenizer>(
      new UnigramTokenizer(std::move(vocabulary), data, std::move(charsmap)));
}

UnigramTokenizer::UnigramTokenizer(Vocabulary vocabulary, const TokenizerData& data,
                                   Charsmap charsmap)
    : Tokenizer(std::move(vocabulary)),
      charsmap_(std::move(charsmap)),
      merge_spaces_(data.remove_extra_spaces.value_or(false)),
      trie_(MakeTrie(this->vocabulary())),
      unknown_score_(UnknownScore(this->vocabulary())) {
  for (std::int32_t token = 0; token < vocabulary_size(); ++token) {
    const bool user_defined = this->vocabulary().kind(token) == TokenKind::kUserDefined;
    scores_.push_back(user_defined ? 0 : this->vocabulary().score(token));
  }
}

void UnigramTokenizer::EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const {
  std::string repaired;
  std::string normalized;
  normalized.reserve(text.size() + text.size() / 8 + 1);
  Normalizer(*this, &normalized).Run(RepairUtf8(text, &repaired));
  Lattice(*this, normalized, out).Run();
}

void UnigramTokenizer::AppendText(std::int32_t token, std::string* out) const {
  if (vocabulary().kind(token) == TokenKind::kByte) {
    out->push_back(static_cast<char>(vocabulary().TokenByte(token)));
  } else {
    AppendUnescaped(vocabulary().text(token), out);
  }
}

// An unknown token may stand for plain text, so no space is added after it.
bool UnigramTokenizer::AddsSpaceAfter(std::int32_t token) const {
  if (!vocabulary().add_space_prefix() && !merge_spaces_) return false;
  if (token == kNoToken) return true;
  const TokenKind kind = vocabulary().kind(token);
  if (kind == TokenKind::kControl || kind == TokenKind::kUserDefined) return true;
  return vocabulary().IsStructure(token) && kind != TokenKind::kUnknown && token != unknown();
}

}  // namespace kvcache
