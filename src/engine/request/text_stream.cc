#include "engine/request/text_stream.h"

#include <algorithm>
#include <utility>

namespace kvcache {

bool DropsLeadingSpace(const Tokenizer& tokenizer, std::int32_t before, std::int32_t token) {
  if (!tokenizer.vocabulary().Has(before)) return false;
  const TokenKind kind = tokenizer.vocabulary().kind(before);
  if (kind == TokenKind::kNormal || kind == TokenKind::kByte) return false;
  const std::int32_t both[] = {before, token};
  const auto stripped = tokenizer.Decode(both);
  const auto kept = tokenizer.Decode(both, {.leading_space = LeadingSpace::kKeep});
  return stripped.ok() && kept.ok() && stripped->size() < kept->size();
}

std::string TextStream::Push(std::int32_t token) {
  piece_.clear();
  whole_.clear();
  if (std::binary_search(shown_.begin(), shown_.end(), token)) {
    before_ = token;  // words behind it have no space that decoding drops
    characters_.Flush(&whole_);
    whole_ += edge_ + tokenizer_.Piece(token, ControlText::kShown) + edge_;
    return stops_.Push(whole_);
  }
  tokenizer_.AppendPiece(token, &piece_);
  const std::int32_t before = std::exchange(before_, -1);
  const bool drops =
      before >= 0 && piece_.starts_with(' ') && DropsLeadingSpace(tokenizer_, before, token);
  if (drops) piece_.erase(0, 1);
  characters_.Push(piece_, &whole_);
  return stops_.Push(whole_);
}

std::string TextStream::Finish() {
  if (stopped()) return {};
  whole_.clear();
  characters_.Flush(&whole_);
  std::string text = stops_.Push(whole_);
  if (!stopped()) text += stops_.Flush();
  return text;
}

}  // namespace kvcache
