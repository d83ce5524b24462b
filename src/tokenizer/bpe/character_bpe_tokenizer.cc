#include "tokenizer/bpe/character_bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/errors.h"
#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/escaped_space.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache {
namespace {

constexpr VocabularyDefaults kDefaults = {
    .ids = {}, .add_bos = true, .add_eos = false, .add_space_prefix = false};

// Returns the text of each token; empty if text cannot become it. A byte token gets its byte as
// text, unless another token has that text.
Result<TextIndex> CharacterWords(const Vocabulary& vocabulary) {
  std::vector<std::string> words(static_cast<std::size_t>(vocabulary.size()));
  std::array<bool, 256> taken{};
  for (std::int32_t token = 0; token < vocabulary.size(); ++token) {
    if (!vocabulary.CanBeMerged(token)) continue;
    const std::string_view text = vocabulary.text(token);
    words[static_cast<std::size_t>(token)] = text;
    if (text.size() == 1) taken[static_cast<std::uint8_t>(text[0])] = true;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::int32_t token = vocabulary.ByteToken(static_cast<std::uint8_t>(byte));
    if (token == kNoToken || taken[static_cast<std::size_t>(byte)]) continue;
    if (vocabulary.kind(token) != TokenKind::kByte) continue;
    words[static_cast<std::size_t>(token)] = std::string(1, static_cast<char>(byte));
  }
  return TextIndex::Make(words);
}

// Returns the bytes of the character that begins with `lead`.
std::size_t LengthOf(char lead) {
  const auto byte = static_cast<std::uint8_t>(lead);
  return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

void AddCharacters(std::string_view text, std::set<std::string, std::less<>>* characters) {
  while (!text.empty()) {
    const std::size_t length = std::min(LengthOf(text.front()), text.size());
    const std::string_view character = text.substr(0, length);
    if (length > 1 && characters->find(character) == characters->end()) {
      characters->emplace(character);
    }
    text.remove_prefix(length);
  }
}

// Returns the merges that assemble characters, then those of the file, as BpeMerges spells them.
std::vector<std::string> AllMerges(const TokenizerData& data) {
  std::set<std::string, std::less<>> characters;
  for (const std::string& token : data.tokens) AddCharacters(token, &characters);
  for (const std::string& merge : data.merges) AddCharacters(merge, &characters);
  std::vector<std::string> merges;
  merges.reserve(2 * characters.size() + data.merges.size());
  for (const std::string_view character : characters) {
    for (std::size_t n = 1; n < character.size(); ++n) {
      merges.push_back(SpellBytes(character.substr(0, n)) + " " +
                       SpellBytes(character.substr(n, 1)));
    }
  }
  for (const std::string_view merge : data.merges) {
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos) continue;  // never applies
    merges.push_back(SpellBytes(merge.substr(0, space)) + " " +
                     SpellBytes(merge.substr(space + 1)));
  }
  return merges;
}

std::string Escape(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ') {
      escaped += kEscapedSpace;
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// Pre-tokenizers that name such vocabularies in files of kind "gpt2". Sarvam's texts keep their spaces.
constexpr std::string_view kSarvam = "sarvam-moe";
constexpr std::string_view kGraniteEmbedding = "granite-embed-multi-311m";

}  // namespace

bool CharacterBpeTokenizer::IsKindOf(const TokenizerData& data) {
  return data.pre == kSarvam || data.pre == kGraniteEmbedding;
}

Result<std::unique_ptr<Tokenizer>> CharacterBpeTokenizer::Make(const TokenizerData& data) {
  if (data.merges.empty()) {
    return Corrupt("the vocabulary of kind 'gemma4' has no merges; needs at least one");
  }
  KVCACHE_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Make(data, kDefaults));
  KVCACHE_ASSIGN_OR_RETURN(TextIndex words, CharacterWords(vocabulary));
  KVCACHE_ASSIGN_OR_RETURN(BpeMerges merges, BpeMerges::Make(AllMerges(data), words));
  return std::unique_ptr<Tokenizer>(new CharacterBpeTokenizer(
      std::move(vocabulary), data.pre != kSarvam, std::move(words), std::move(merges)));
}

void CharacterBpeTokenizer::EncodePlain(std::string_view text,
                                        std::vector<std::int32_t>* out) const {
  std::string repaired;
  const std::string escaped = Escape(RepairUtf8(text, &repaired));
  BpeMerge merge(merges_);
  std::string_view rest = escaped;
  while (!rest.empty()) {
    const bool feeds = rest.front() == '\n';
    const std::size_t end = feeds ? rest.find_first_not_of('\n') : rest.find('\n');
    EncodeRun(rest.substr(0, end), &merge, out);
    rest.remove_prefix(std::min(end, rest.size()));
  }
}

void CharacterBpeTokenizer::EncodeRun(std::string_view run, BpeMerge* merge,
                                      std::vector<std::int32_t>* out) const {
  if (run.front() == '\n') {
    if (const std::int32_t token = words_.Find(run); token != kNoToken) {
      return out->push_back(token);
    }
  }
  merge->Run(run, [&](BpeSymbol symbol) {
    merges_.ForEachToken(symbol, [&](std::int32_t token) {
      if (token == kNoToken) token = unknown();
      if (token != kNoToken) out->push_back(token);
    });
  });
}

void CharacterBpeTokenizer::AppendText(std::int32_t token, std::string* out) const {
  if (vocabulary().kind(token) == TokenKind::kByte) {
    out->push_back(static_cast<char>(vocabulary().TokenByte(token)));
    return;
  }
  AppendUnescaped(vocabulary().text(token), out);
}

}  // namespace kvcache
