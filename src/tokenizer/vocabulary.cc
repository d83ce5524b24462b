#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/errors.h"
#include "base/strings.h"
#include "tokenizer/token_shape.h"

namespace kvcache {
namespace {

constexpr std::size_t kMaxSpecialBytes = std::size_t{1} << 22;

// kNoToken in files that store ids as unsigned numbers.
constexpr std::int64_t kNoTokenUnsigned = 0xFFFFFFFF;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// Returns the byte of "<0x0A>"; -1 for other texts.
int ByteOfText(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const int high = HexDigit(text[3]);
  const int low = HexDigit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string TextOfByte(int byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<',
          '0',
          'x',
          kDigits[static_cast<std::size_t>(byte / 16)],
          kDigits[static_cast<std::size_t>(byte % 16)],
          '>'};
}

Status CheckCount(std::string_view what, std::size_t count, std::size_t tokens) {
  if (count == 0 || count == tokens) return Status::Ok();
  return Corrupt(StrCat("the vocabulary has ", count, " ", what, " for ", tokens,
                        " tokens; needs one for each token, or none"));
}

}  // namespace

Result<Vocabulary> Vocabulary::Make(const TokenizerData& data, const VocabularyDefaults& defaults) {
  Vocabulary vocabulary;
  KVCACHE_RETURN_IF_ERROR(vocabulary.SetTokens(data));
  KVCACHE_RETURN_IF_ERROR(vocabulary.SetKinds(data));
  vocabulary.SetIds(data, defaults.ids);
  vocabulary.FindRolesByText();
  vocabulary.MarkEndOfGeneration();
  vocabulary.MarkStructure();
  vocabulary.SetByteTokens();
  KVCACHE_RETURN_IF_ERROR(vocabulary.CollectSpecialTokens());
  KVCACHE_RETURN_IF_ERROR(vocabulary.SetStrips(data));
  vocabulary.add_bos_ = data.add_bos.value_or(defaults.add_bos);
  vocabulary.add_eos_ = data.add_eos.value_or(defaults.add_eos);
  vocabulary.add_space_prefix_ = data.add_space_prefix.value_or(defaults.add_space_prefix);
  return vocabulary;
}

Status Vocabulary::SetTokens(const TokenizerData& data) {
  if (data.tokens.empty()) return Corrupt("the vocabulary has no tokens");
  KVCACHE_RETURN_IF_ERROR(CheckCount("scores", data.scores.size(), data.tokens.size()));
  KVCACHE_RETURN_IF_ERROR(CheckCount("types", data.types.size(), data.tokens.size()));
  auto index = TextIndex::Make(data.tokens);
  if (!index.ok()) return std::move(index).TakeStatus().WithContext("the vocabulary's tokens");
  index_ = std::move(*index);
  scores_ = data.scores;
  scores_.resize(data.tokens.size());
  kinds_.resize(data.tokens.size(), TokenKind::kNormal);
  flags_.resize(data.tokens.size());
  return Status::Ok();
}

Status Vocabulary::SetKinds(const TokenizerData& data) {
  for (std::size_t i = 0; i < data.types.size(); ++i) {
    const std::int32_t type = data.types[i];
    if (type < 0 || type > static_cast<std::int32_t>(TokenKind::kByte)) {
      return Corrupt(StrCat("token ", i, " has type ", type, "; must be 0 to 6"));
    }
    kinds_[i] = static_cast<TokenKind>(type);
  }
  for (std::int32_t i = 0; i < size(); ++i) {
    TokenKind& kind = kinds_[static_cast<std::size_t>(i)];
    const bool is_byte = ByteOfText(text(i)) >= 0;
    if (data.types.empty() && data.model == "llama" && is_byte) kind = TokenKind::kByte;
    // A byte token whose text names no byte stands for its text.
    if (kind == TokenKind::kByte && !is_byte) kind = TokenKind::kNormal;
  }
  return Status::Ok();
}

void Vocabulary::SetIds(const TokenizerData& data, const SpecialIds& defaults) {
  for (const SpecialRole& role : SpecialRoles()) {
    const std::int32_t otherwise = defaults.*role.id < size() ? defaults.*role.id : kNoToken;
    const std::int64_t given = (data.*role.given).value_or(kNoToken);
    const bool in_range = given >= 0 && given < size();
    ids_.*role.id = in_range ? static_cast<std::int32_t>(given) : otherwise;
    if (in_range || given == kNoToken || given == kNoTokenUnsigned) continue;
    notes_.push_back(StrCat("tokenizer.ggml.", role.key, " is ", given, ", but the vocabulary has ",
                            size(), " tokens; ",
                            otherwise == kNoToken
                                ? "no token"
                                : StrCat("token ", otherwise, " (", Quoted(text(otherwise)), ")"),
                            " is used"));
  }
}

void Vocabulary::SetByteTokens() {
  // Any text may fall back to byte tokens, so none of them may be structure.
  const auto find_text = [this](const std::string& text) {
    const std::int32_t token = Find(text);
    if (token == kNoToken || IsStructure(token)) return kNoToken;
    return CanBeMerged(token) || kind(token) == TokenKind::kByte ? token : kNoToken;
  };
  for (int byte = 0; byte < 256; ++byte) {
    std::int32_t token = find_text(TextOfByte(byte));
    if (token == kNoToken) token = find_text(std::string(1, static_cast<char>(byte)));
    byte_tokens_[static_cast<std::size_t>(byte)] = token;
  }
}

std::uint8_t Vocabulary::TokenByte(std::int32_t token) const {
  return static_cast<std::uint8_t>(ByteOfText(text(token)));
}

void Vocabulary::SetFlag(std::int32_t token, Flag flag) {
  std::uint8_t& flags = flags_[static_cast<std::size_t>(token)];
  flags = static_cast<std::uint8_t>(flags | flag);
}

void Vocabulary::ClearFlag(std::int32_t token, Flag flag) {
  std::uint8_t& flags = flags_[static_cast<std::size_t>(token)];
  flags = static_cast<std::uint8_t>(flags & ~flag);
}

Status Vocabulary::SetStrips(const TokenizerData& data) {
  const auto set = [this](const std::vector<std::int64_t>& tokens, Flag flag) {
    for (const std::int64_t token : tokens) {
      if (token < 0 || token >= size()) {
        return Corrupt(StrCat("token ", token,
                              " strips white space, but is outside the vocabulary; "
                              "must be 0 to ",
                              size() - 1));
      }
      SetFlag(static_cast<std::int32_t>(token), flag);
    }
    return Status::Ok();
  };
  KVCACHE_RETURN_IF_ERROR(set(data.strip_before, kStripBefore));
  return set(data.strip_after, kStripAfter);
}

void Vocabulary::MarkStructure() {
  std::vector<bool> has_role(kinds_.size());
  for (const SpecialRole& role : SpecialRoles()) {
    const std::int32_t token = ids_.*role.id;
    if (token == kNoToken) continue;
    has_role[static_cast<std::size_t>(token)] = true;
    // Files may give these tokens the type normal, or no types, and any text ("EOS").
    if (role.ends_generation || role.id == &SpecialIds::bos) SetFlag(token, kStructure);
  }
  for (std::int32_t token = 0; token < size(); ++token) {
    const TokenKind k = kind(token);
    const bool hidden = k == TokenKind::kControl || k == TokenKind::kUnknown;
    const bool role = has_role[static_cast<std::size_t>(token)];
    const bool user_defined = k == TokenKind::kUserDefined;
    const TokenShape shape = user_defined || role ? ShapeOf(text(token)) : TokenShape::kWords;
    const bool other = user_defined && shape == TokenShape::kText;
    if (hidden || shape == TokenShape::kMarker || (other && role)) SetFlag(token, kStructure);
    if (IsStructure(token) || other || k == TokenKind::kByte) SetFlag(token, kNeverMerged);
  }
}

Status Vocabulary::CollectSpecialTokens() {
  std::size_t bytes = 0;
  for (std::int32_t token = 0; token < size(); ++token) {
    const bool special = IsStructure(token) || kind(token) == TokenKind::kUserDefined;
    if (!special || text(token).empty()) continue;
    special_tokens_.push_back(token);
    bytes += text(token).size();
  }
  if (bytes > kMaxSpecialBytes) {
    return Corrupt(StrCat("the texts of the special tokens take ", bytes, " bytes; at most ",
                          kMaxSpecialBytes, " are allowed"));
  }
  std::stable_sort(
      special_tokens_.begin(), special_tokens_.end(),
      [this](std::int32_t a, std::int32_t b) { return text(a).size() > text(b).size(); });
  return Status::Ok();
}

}  // namespace kvcache
