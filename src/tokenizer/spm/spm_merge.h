// Joins neighbouring characters, best score first: the core of SentencePiece's BPE.
//
//   characters   t    h    e    r    e        prev/next: a list; joined ones are unlinked
//   pairs         th   he   er   re           priority of joining i with its next part, 0: none
//
// The high half of a priority is the score, the low half the inverted number of the character. So
// the largest priority is the best score, and the leftmost pair among equal scores. A tree of
// maxima returns it in O(1) and updates it in O(log n).
//
// Thread safety: SpmMerge belongs to one call; the tables are constant.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tokenizer/max_tree.h"
#include "tokenizer/vocabulary.h"

namespace kvcache {

// Returns the bytes of the character that begins with `lead`. Only the high bits of `lead` count,
// as in llama.cpp: the bytes that follow belong to the character whatever they are, and at the end
// of a text it may be shorter.
inline std::size_t SpmCharacterLength(std::uint8_t lead) {
  if (lead < 0xC0) return 1;
  if (lead < 0xE0) return 2;
  return lead < 0xF0 ? 3 : 4;
}

// Returns the first character of `text`. REQUIRES: `text` is not empty.
inline std::string_view SpmFirstCharacter(std::string_view text) {
  return text.substr(0, SpmCharacterLength(static_cast<std::uint8_t>(text.front())));
}

// The tokens that joining may produce, and their scores as integers in the same order.
class SpmScores {
 public:
  explicit SpmScores(const Vocabulary& vocabulary);

  // Returns the token with this text; kNoToken if there is none or joining may not produce it.
  std::int32_t Find(std::string_view text) const {
    const std::int32_t token = vocabulary_->Find(text);
    return token != kNoToken && order_[static_cast<std::size_t>(token)] == 0 ? kNoToken : token;
  }
  // Returns the score as an integer, at least 1. REQUIRES: Find returned `token`.
  std::uint32_t Order(std::int32_t token) const { return order_[static_cast<std::size_t>(token)]; }

 private:
  const Vocabulary* vocabulary_;
  std::vector<std::uint32_t> order_;  // by token; 0: never joined
};

// The pairs of characters that are neighbours in some token. Exact for pairs of ASCII and U+2581.
// Other pairs share bits: MayJoin may be true for a pair that does not occur, never the reverse.
class SpmNeighbors {
 public:
  explicit SpmNeighbors(const Vocabulary& vocabulary);

  bool MayJoin(std::uint32_t left, std::uint32_t right) const {
    return left < 128 && right < 128 ? (*ascii_)[left << 7 | right] : (*others_)[Bit(left, right)];
  }

  // Returns a character's number for MayJoin: its bytes, or a space for U+2581.
  static std::uint32_t Code(std::string_view character) {
    std::uint32_t code = 0;
    for (const char c : character) code = code << 8 | static_cast<std::uint8_t>(c);
    return code == 0xE29681 ? ' ' : code;
  }

 private:
  static constexpr std::size_t kBits = std::size_t{1} << 18;

  void Add(std::uint32_t left, std::uint32_t right);
  static std::size_t Bit(std::uint32_t left, std::uint32_t right) {
    return ((left * 0x9E3779B1u) ^ (right * 0x85EBCA77u)) * 0xC2B2AE3Du >> 14;
  }

  std::unique_ptr<std::bitset<128 * 128>> ascii_;
  std::unique_ptr<std::bitset<kBits>> others_;
};

// Merges fragments. One object serves one EncodePlain call and reuses its memory.
class SpmMerge {
 public:
  explicit SpmMerge(const SpmScores& scores) : scores_(scores) {}

  // Joins all pairs that can be joined. REQUIRES: `fragment` has 1 to 2^32 - 1 bytes.
  // Cost: O(n log n) time, 30 bytes of memory per character.
  void Run(std::string_view fragment);

  // Visits the result of Run from left to right: visit(text, token or kNoToken).
  template <typename Visitor>
  void ForEach(Visitor visit) const {
    for (std::uint32_t i = 0; i != End(); i = parts_[i].next) {
      const std::string_view text = TextOf(i, parts_[i].next);
      visit(text, parts_[i].token != kNoToken ? parts_[i].token : scores_.Find(text));
    }
  }

 private:
  struct Part {
    std::uint32_t begin;      // in the fragment; the part ends where the next one begins
    std::uint32_t prev;       // kNone before the first
    std::uint32_t next;       // End() after the last
    std::int32_t token;       // the token it was joined to; kNoToken: a single character
    std::int32_t pair_token;  // the token of this and the next part, if the priority is not 0
  };
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::uint32_t End() const { return static_cast<std::uint32_t>(parts_.size()) - 1; }
  std::string_view TextOf(std::uint32_t i, std::uint32_t j) const {
    return fragment_.substr(parts_[i].begin, parts_[j].begin - parts_[i].begin);
  }
  void Split();
  void Join(std::uint32_t left);
  std::uint64_t PairPriority(std::uint32_t left);
  void UpdatePair(std::uint32_t left);

  const SpmScores& scores_;
  std::string_view fragment_;
  std::vector<Part> parts_;  // with one more entry for the end of the last part
  std::vector<std::uint64_t> priorities_;
  MaxTree tree_;
};

}  // namespace kvcache
