// Proposes what followed the last tokens the last time. Tables from the hash of the last N tokens to the
// place behind them, for three N; the longest that matches wins.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvcache/drafter.h"

namespace kvcache {

class LookupDrafter final : public Drafter {
 public:
  Status Begin(std::span<const std::int32_t> text) override;
  Status Add(std::int32_t token) override;
  Status Propose(int max, std::vector<std::int32_t>& drafts) override;

  static constexpr std::array<std::size_t, 3> kLengths = {12, 6, 3};
  // Proposes what followed the last `length` tokens, one of kLengths. Returns whether anything did.
  // Throws std::bad_alloc.
  bool ProposeAfter(std::size_t length, int max, std::vector<std::int32_t>& drafts) const;

 private:
  static constexpr std::size_t kMaxTokens = 1 << 20;  // of all texts

  // Throws std::bad_alloc.
  void Append(std::int32_t token);
  // Returns the hash of the last `count` tokens. REQUIRES: the text has as many.
  std::uint64_t HashOfLast(std::size_t count) const;

  std::vector<std::int32_t> tokens_;  // all texts, one after the other
  std::size_t begin_ = 0;             // of the last text
  std::array<std::unordered_map<std::uint64_t, std::size_t>, kLengths.size()> places_;
};

}  // namespace kvcache
