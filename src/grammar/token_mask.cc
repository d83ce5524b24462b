#include "grammar/token_mask.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvcache {

TokenTable::TokenTable(std::vector<std::string> pieces, std::vector<std::int32_t> ends)
    : pieces_(std::move(pieces)), ends_(std::move(ends)) {
  for (const std::int32_t end : ends_) pieces_[static_cast<std::size_t>(end)].clear();
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (!pieces_[i].empty()) entries_.push_back({static_cast<std::int32_t>(i), 0});
  }
  std::sort(entries_.begin(), entries_.end(), [this](const Entry& a, const Entry& b) {
    const int order = piece(a.token).compare(piece(b.token));
    return order != 0 ? order < 0 : a.token < b.token;
  });
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    const std::string& before = piece(entries_[i - 1].token);
    const std::string& own = piece(entries_[i].token);
    const auto same = std::mismatch(before.begin(), before.end(), own.begin(), own.end());
    entries_[i].common = static_cast<std::int32_t>(same.first - before.begin());
  }
}

bool TokenTable::IsEnd(std::int32_t token) const {
  return std::find(ends_.begin(), ends_.end(), token) != ends_.end();
}

TokenMask::TokenMask(std::shared_ptr<const TokenTable> table, Grammar grammar)
    : table_(std::move(table)), automaton_(std::move(grammar)), state_(automaton_.start()) {}

// The states along the text of one token are those of the next as far as both texts are the same.
const std::vector<bool>& TokenMask::MaskOf(State state) {
  const auto known = masks_.find(state);
  if (known != masks_.end()) return known->second;
  if (masks_.size() >= kMostMasks) masks_.clear();
  std::vector<bool>& mask = masks_[state];
  mask.assign(table_->size(), false);
  path_.assign(1, state);
  for (const TokenTable::Entry& entry : table_->entries()) {
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
    mask[static_cast<std::size_t>(entry.token)] = path_.size() == piece.size() + 1;
  }
  for (const std::int32_t end : table_->ends()) {
    mask[static_cast<std::size_t>(end)] = automaton_.Accepts(state);
  }
  return mask;
}

void TokenMask::ForgetIfMany() {
  if (automaton_.size() < kManyStates) return;
  state_ = automaton_.ForgetAllBut(state_);
  masks_.clear();
}

bool TokenMask::Apply(std::span<float> logits) {
  if (state_ == GrammarAutomaton::kDead) return false;
  ForgetIfMany();
  const std::vector<bool>& mask = MaskOf(state_);
  if (automaton_.full()) return false;
  bool any = false;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const bool allowed = i < mask.size() && mask[i];
    any = any || allowed;
    if (!allowed) logits[i] = -std::numeric_limits<float>::infinity();
  }
  return any;
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
