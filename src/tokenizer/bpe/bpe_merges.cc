#include "tokenizer/bpe/bpe_merges.h"

#include "base/errors.h"
#include "base/strings.h"
#include "tokenizer/bpe/byte_alphabet.h"

namespace kvcache {
namespace {

constexpr std::size_t kMaxMerges = std::size_t{1} << 24;

}  // namespace

std::size_t BpeMerges::KeyedHash::operator()(const std::string& text) const {
  std::uint64_t hash = ProcessHashKey();
  for (const char c : text) hash = MixHash(hash ^ static_cast<std::uint8_t>(c), kHashOdd1);
  return MixHash(hash ^ ProcessHashKey(), kHashOdd2);
}

Result<BpeMerges> BpeMerges::Make(const std::vector<std::string>& merges, const TextIndex& tokens) {
  if (merges.size() > kMaxMerges) {
    return Corrupt(StrCat("the vocabulary has ", merges.size(), " merges; at most ", kMaxMerges,
                          " are allowed"));
  }
  BpeMerges result;
  result.tokens_ = tokens.size();
  result.table_ = OpenHashTable<Slot>(merges.size());
  result.key_ = ProcessHashKey();
  for (std::size_t byte = 0; byte < 256; ++byte) {
    result.byte_symbols_[byte] = result.Intern(std::string(1, static_cast<char>(byte)), tokens);
  }
  for (std::size_t i = 0; i < merges.size(); ++i) {
    result.Add(static_cast<std::uint32_t>(i), merges[i], tokens);
  }
  result.FillByteMerges();
  result.others_.clear();
  return result;
}

BpeSymbol BpeMerges::Intern(const std::string& text, const TextIndex& tokens) {
  if (const BpeSymbol token = tokens.Find(text); token != kNoSymbol) return token;
  const auto fresh = static_cast<BpeSymbol>(static_cast<std::size_t>(tokens_) + parts_.size());
  const auto [at, inserted] = others_.emplace(text, fresh);
  if (inserted) parts_.push_back({});
  return at->second;
}

void BpeMerges::Add(std::uint32_t rank, const std::string& merge, const TextIndex& tokens) {
  const std::size_t space = merge.find(' ', 1);
  if (space == std::string::npos || space + 1 == merge.size()) return;
  std::string left_text;
  std::string right_text;
  const std::string_view line = merge;
  if (!AppendBytesOf(line.substr(0, space), &left_text)) return;
  if (!AppendBytesOf(line.substr(space + 1), &right_text)) return;
  const BpeSymbol left = Intern(left_text, tokens);
  const BpeSymbol right = Intern(right_text, tokens);
  Slot& slot = table_.Find(HashOf(left, right), HoldsPair{left, right});
  if (!slot.IsFree()) return;
  const BpeSymbol result = Intern(left_text + right_text, tokens);
  slot = {left, right, {rank, result}};
  ++size_;
  if (result < tokens_) return;
  Parts& parts = parts_[static_cast<std::size_t>(result - tokens_)];
  if (parts.left == kNoSymbol) parts = {left, right};
}

std::uint64_t BpeMerges::HashOf(BpeSymbol left, BpeSymbol right) const {
  const std::uint64_t pair =
      std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  return MixHash(pair ^ key_, kHashOdd1);
}

BpeMerges::Merge BpeMerges::Find(BpeSymbol left, BpeSymbol right) const {
  return table_.Find(HashOf(left, right), HoldsPair{left, right}).merge;
}

void BpeMerges::FillByteMerges() {
  constexpr int kNoByte = -1;
  std::vector<std::int16_t> byte_of(static_cast<std::size_t>(tokens_) + parts_.size(), kNoByte);
  for (std::size_t byte = 0; byte < 256; ++byte) {
    byte_of[static_cast<std::size_t>(byte_symbols_[byte])] = static_cast<std::int16_t>(byte);
  }
  byte_merges_.resize(std::size_t{1} << 16);
  for (const Slot& slot : table_.slots()) {
    if (slot.IsFree()) continue;
    const int left = byte_of[static_cast<std::size_t>(slot.left)];
    const int right = byte_of[static_cast<std::size_t>(slot.right)];
    if (left == kNoByte || right == kNoByte) continue;
    byte_merges_[static_cast<std::size_t>(left) << 8 | static_cast<std::size_t>(right)] =
        slot.merge;
  }
}

}  // namespace kvcache
