#include "tokenizer/spm/spm_merge.h"

#include <bit>
#include <cmath>
#include <string>

namespace kvcache {
namespace {

// Maps scores to integers in the same order: 1 for NaN, more for other values. +0 equals -0.
std::uint32_t OrderOf(float score) {
  if (std::isnan(score)) return 1;
  if (score == 0) score = 0;
  const auto bits = std::bit_cast<std::uint32_t>(score);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace

SpmScores::SpmScores(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {
  order_.resize(static_cast<std::size_t>(vocabulary.size()));
  for (std::int32_t token = 0; token < vocabulary.size(); ++token) {
    if (vocabulary.CanBeMerged(token)) {
      order_[static_cast<std::size_t>(token)] = OrderOf(vocabulary.score(token));
    }
  }
}

SpmNeighbors::SpmNeighbors(const Vocabulary& vocabulary)
    : ascii_(std::make_unique<std::bitset<128 * 128>>()),
      others_(std::make_unique<std::bitset<kBits>>()) {
  for (std::int32_t token = 0; token < vocabulary.size(); ++token) {
    std::string_view text = vocabulary.text(token);
    std::uint32_t left = 0;
    for (bool first = true; !text.empty(); first = false) {
      const std::string_view character = SpmFirstCharacter(text);
      const std::uint32_t right = Code(character);
      if (!first) Add(left, right);
      left = right;
      text.remove_prefix(character.size());
    }
  }
}

void SpmNeighbors::Add(std::uint32_t left, std::uint32_t right) {
  if (left < 128 && right < 128) {
    ascii_->set(left << 7 | right);
  } else {
    others_->set(Bit(left, right));
  }
}

void SpmMerge::Run(std::string_view fragment) {
  fragment_ = fragment;
  Split();
  priorities_.clear();
  for (std::uint32_t i = 0; i != End(); ++i) priorities_.push_back(PairPriority(i));
  tree_.Build(priorities_);
  for (std::uint64_t best = tree_.Max(); best != 0; best = tree_.Max()) {
    Join(~static_cast<std::uint32_t>(best));
  }
}

void SpmMerge::Split() {
  parts_.clear();
  std::size_t at = 0;
  while (at < fragment_.size()) {
    const auto i = static_cast<std::uint32_t>(parts_.size());
    parts_.push_back(
        {static_cast<std::uint32_t>(at), i == 0 ? kNone : i - 1, i + 1, kNoToken, kNoToken});
    at += SpmFirstCharacter(fragment_.substr(at)).size();
  }
  parts_.push_back(
      {static_cast<std::uint32_t>(fragment_.size()), kNone, kNone, kNoToken, kNoToken});
}

// Returns the priority of joining `left` with the next part; 0 if there is no next part or token.
std::uint64_t SpmMerge::PairPriority(std::uint32_t left) {
  Part& part = parts_[left];
  if (part.next == End()) return 0;
  part.pair_token = scores_.Find(TextOf(left, parts_[part.next].next));
  if (part.pair_token == kNoToken) return 0;
  return std::uint64_t{scores_.Order(part.pair_token)} << 32 | ~left;
}

void SpmMerge::UpdatePair(std::uint32_t left) {
  tree_.Set(left, PairPriority(left));
}

// Joins the next part to `left`.
void SpmMerge::Join(std::uint32_t left) {
  Part& part = parts_[left];
  const std::uint32_t removed = part.next;
  part.token = part.pair_token;
  part.next = parts_[removed].next;
  parts_[part.next].prev = left;
  tree_.Set(removed, 0);
  UpdatePair(left);
  if (part.prev != kNone) UpdatePair(part.prev);
}

}  // namespace kvcache
