#include "grammar/token_mask.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvcache {
namespace {

void SetBit(TokenTable::Bits& bits, std::int32_t token) {
  const auto at = static_cast<std::size_t>(token);
  bits[at / 64] |= std::uint64_t{1} << at % 64;
}

// Returns the bits of 64 tokens from `begin` on. REQUIRES: begin % 64 == 0.
std::uint64_t GroupOf(const TokenTable::Bits& bits, std::size_t begin) {
  return begin / 64 < bits.size() ? bits[begin / 64] : 0;
}

bool IsSet(const TokenTable::Bits& bits, std::size_t token) {
  return (GroupOf(bits, token / 64 * 64) >> token % 64 & 1) != 0;
}

}  // namespace

TokenTable::TokenTable(std::vector<std::string> pieces, std::vector<std::int32_t> ends)
    : pieces_(std::move(pieces)), ends_(std::move(ends)) {
  for (const std::int32_t end : ends_) pieces_[static_cast<std::size_t>(end)].clear();
  plain_bits_.assign((pieces_.size() + 63) / 64, 0);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const auto token = static_cast<std::int32_t>(i);
    if (pieces_[i].empty()) continue;
    const bool is_plain = std::all_of(pieces_[i].begin(), pieces_[i].end(), [](char c) {
      return IsPlain(static_cast<unsigned char>(c));
    });
    (is_plain ? plain_ : others_).push_back({token, 0});
    if (is_plain) SetBit(plain_bits_, token);
  }
  for (std::vector<Entry>* const list : {&plain_, &others_}) Sort(*list);
}

void TokenTable::Sort(std::vector<Entry>& list) const {
  std::sort(list.begin(), list.end(), [this](const Entry& a, const Entry& b) {
    const int order = piece(a.token).compare(piece(b.token));
    return order != 0 ? order < 0 : a.token < b.token;
  });
  for (std::size_t i = 1; i < list.size(); ++i) {
    const std::string& before = piece(list[i - 1].token);
    const std::string& own = piece(list[i].token);
    const auto same = std::mismatch(before.begin(), before.end(), own.begin(), own.end());
    list[i].common = static_cast<std::int32_t>(same.first - before.begin());
  }
}

bool TokenTable::IsEnd(std::int32_t token) const {
  return std::find(ends_.begin(), ends_.end(), token) != ends_.end();
}

TokenMask::TokenMask(std::shared_ptr<const TokenTable> table,
                     std::shared_ptr<const Grammar> grammar)
    : table_(std::move(table)), automaton_(std::move(grammar)), state_(automaton_.start()) {}

bool TokenMask::PlainStays(State state) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto one = static_cast<unsigned char>(byte);
    if (TokenTable::IsPlain(one) && automaton_.Next(state, one) != state) return false;
  }
  return true;
}

// The states along the text of one token are those of the next as far as both texts are the same.
void TokenMask::Walk(State state, std::span<const TokenTable::Entry> entries, Bits& bits) {
  path_.assign(1, state);
  for (const TokenTable::Entry& entry : entries) {
    const auto common = static_cast<std::size_t>(entry.common);
    if (common >= path_.size()) continue;  // the text died within what both begin with
    path_.resize(common + 1);
    const std::string& piece = table_->piece(entry.token);
    while (path_.size() <= piece.size()) {
      const State next =
          automaton_.Next(path_.back(), static_cast<unsigned char>(piece[path_.size() - 1]));
      if (next == GrammarAutomaton::kDead) break;
      path_.push_back(next);
    }
    if (path_.size() == piece.size() + 1) SetBit(bits, entry.token);
  }
}

const TokenMask::Bits& TokenMask::MaskOf(State state) {
  const auto known = masks_.find(state);
  if (known != masks_.end()) return known->second;
  if (masks_.size() >= kMaxMasks) masks_.clear();
  Bits& bits = masks_[state];
  if (PlainStays(state)) {
    bits = table_->plain_bits();
  } else {
    bits.assign(table_->plain_bits().size(), 0);
    Walk(state, table_->plain(), bits);
  }
  Walk(state, table_->others(), bits);
  if (!automaton_.Accepts(state)) return bits;
  for (const std::int32_t end : table_->ends()) SetBit(bits, end);
  return bits;
}

void TokenMask::ForgetIfMany() {
  if (automaton_.size() < kManyStates) return;
  state_ = automaton_.ForgetAllBut(state_);
  masks_.clear();
}

bool TokenMask::Apply(std::span<float> logits) {
  if (state_ == GrammarAutomaton::kDead) return false;
  ForgetIfMany();
  const Bits& mask = MaskOf(state_);
  if (automaton_.full()) return false;
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  bool any = false;
  for (std::size_t begin = 0; begin < logits.size(); begin += 64) {
    const std::uint64_t allowed = GroupOf(mask, begin);
    any = any || allowed != 0;
    const std::size_t count = std::min<std::size_t>(64, logits.size() - begin);
    if (allowed == 0) {
      std::fill_n(logits.begin() + static_cast<std::ptrdiff_t>(begin), count, kNever);
      continue;
    }
    if (allowed == ~std::uint64_t{0}) continue;
    for (std::size_t i = 0; i < count; ++i) {
      if ((allowed >> i & 1) == 0) logits[begin + i] = kNever;
    }
  }
  return any;
}

bool TokenMask::Lower(std::span<float> logits, float by) {
  if (state_ == GrammarAutomaton::kDead) return false;
  ForgetIfMany();
  const Bits& mask = MaskOf(state_);
  if (automaton_.full()) return false;
  bool any = false;
  for (std::size_t i = 0; i < logits.size() && !any; ++i) {
    any = IsSet(mask, i) && std::isfinite(logits[i]);
  }
  if (!any) return false;
  for (std::size_t begin = 0; begin < logits.size(); begin += 64) {
    const std::uint64_t allowed = GroupOf(mask, begin);
    if (allowed == ~std::uint64_t{0}) continue;
    const std::size_t count = std::min<std::size_t>(64, logits.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      if ((allowed >> i & 1) == 0) logits[begin + i] -= by;
    }
  }
  return true;
}

bool TokenMask::Begin(std::string_view text) {
  for (const char c : text) {
    if (state_ == GrammarAutomaton::kDead) return false;
    ForgetIfMany();
    state_ = automaton_.Next(state_, static_cast<unsigned char>(c));
  }
  return state_ != GrammarAutomaton::kDead;
}

bool TokenMask::Take(std::int32_t token) {
  if (state_ == GrammarAutomaton::kDead) return false;
  if (table_->IsEnd(token)) return automaton_.Accepts(state_);
  ForgetIfMany();
  const std::string& piece = table_->piece(token);
  State state = piece.empty() ? GrammarAutomaton::kDead : state_;
  for (const char c : piece) state = automaton_.Next(state, static_cast<unsigned char>(c));
  state_ = state;
  return state != GrammarAutomaton::kDead;
}

bool TokenMask::complete() const {
  return state_ != GrammarAutomaton::kDead && automaton_.IsEnd(state_);
}

}  // namespace kvcache
