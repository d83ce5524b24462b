// The joining of neighbours, best score first: the core of SentencePiece's BPE.
//
//   characters   t    h    e    r    e        prev/next: a list, joined ones drop out
//   pairs         th   he   er   re           priority of joining i with its next one, 0: none
//
// A priority holds the score above and the character's number, inverted, below; so the largest
// one is the best score and, among equals, the leftmost. A tree of maxima gives it in one look,
// and takes a change in O(log n).
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

// Bytes of the character that begins with `lead`, by its high bits alone, as llama.cpp counts
// them; whatever follows belongs to it, and at the end of a text it may be cut short.
inline std::size_t SpmCharacterLength(std::uint8_t lead) {
  if (lead < 0xC0) return 1;
  if (lead < 0xE0) return 2;
  return lead < 0xF0 ? 3 : 4;
}

// The next character of `text`, which is not empty.
inline std::string_view SpmFirstCharacter(std::string_view text) {
  return text.substr(0, SpmCharacterLength(static_cast<std::uint8_t>(text.front())));
}

// Which tokens can be the result of joining, and their scores as integers in the same order.
class SpmScores {
 public:
  explicit SpmScores(const Vocabulary& vocabulary);

  // The token with this text that joining may give; kNoToken if none.
  std::int32_t Find(std::string_view text) const {
    const std::int32_t token = vocabulary_->Find(text);
    return token != kNoToken && order_[static_cast<std::size_t>(token)] == 0 ? kNoToken : token;
  }
  // REQUIRES: Find gave `token`. At least 1.
  std::uint32_t Order(std::int32_t token) const { return order_[static_cast<std::size_t>(token)]; }

 private:
  const Vocabulary* vocabulary_;
  std::vector<std::uint32_t> order_;  // by token; 0: never joined
};

// Which characters stand side by side in some token. Exact for pairs of ASCII and U+2581;
// others share bits, so that a pair may be taken for one that occurs, never the reverse.
class SpmNeighbours {
 public:
  explicit SpmNeighbours(const Vocabulary& vocabulary);

  bool MayJoin(std::uint32_t left, std::uint32_t right) const {
    return left < 128 && right < 128 ? (*ascii_)[left << 7 | right] : (*others_)[Bit(left, right)];
  }

  // A character's number for MayJoin: ASCII as it is, U+2581 as the space that it stands for.
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

// One call's scratch, used for stretch after stretch.
class SpmMerge {
 public:
  explicit SpmMerge(const SpmScores& scores) : scores_(scores) {}

  // Joins what can be joined in `stretch`, which is not empty and has less than 2^32 bytes.
  // Cost: O(n log n), and 30 bytes of scratch per character.
  void Run(std::string_view stretch);

  // The result of Run from left to right: visit(text, token or kNoToken).
  template <typename Visitor>
  void ForEach(Visitor visit) const {
    for (std::uint32_t i = 0; i != End(); i = parts_[i].next) {
      const std::string_view text = TextOf(i, parts_[i].next);
      visit(text, parts_[i].token != kNoToken ? parts_[i].token : scores_.Find(text));
    }
  }

 private:
  struct Part {
    std::uint32_t begin;      // in the stretch; its end is the next one's begin
    std::uint32_t prev;       // kNone before the first
    std::uint32_t next;       // End() after the last
    std::int32_t token;       // what it was joined to; kNoToken: a single character
    std::int32_t pair_token;  // of its text with the next one's, where the priority is not 0
  };
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::uint32_t End() const { return static_cast<std::uint32_t>(parts_.size()) - 1; }
  std::string_view TextOf(std::uint32_t i, std::uint32_t j) const {
    return stretch_.substr(parts_[i].begin, parts_[j].begin - parts_[i].begin);
  }
  void Split();
  void Join(std::uint32_t left);
  std::uint64_t PairPriority(std::uint32_t left);
  void UpdatePair(std::uint32_t left);

  const SpmScores& scores_;
  std::string_view stretch_;
  std::vector<Part> parts_;  // and one at the end, where the last one ends
  std::vector<std::uint64_t> priorities_;
  MaxTree tree_;
};

}  // namespace kvcache
