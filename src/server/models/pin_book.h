// Keeps prefixes in the cache for a time, within a bound: what is pinned cannot make room for requests.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/prefix_cache.h"

namespace kvcache::server {

class PinBook {
 public:
  // `prefixes` must outlive the book. `max_tokens`: of all pinned prompts together.
  PinBook(PrefixCache& prefixes, std::int64_t max_tokens)
      : prefixes_(prefixes), max_tokens_(max_tokens) {}

  // Keeps what is known of `tokens` with this salt until `until`. Those that end first give way. Both times are of the
  // clock of the prefixes.
  void Pin(std::span<const std::int32_t> tokens, double until, double now, std::uint64_t salt = 0);
  // Unpins everything.
  void Clear(double now);

  std::int64_t tokens() const { return tokens_; }

 private:
  struct Entry {
    std::vector<std::int32_t> tokens{};
    double until = 0.0;
    std::uint64_t salt = 0;
  };

  void Unpin(std::size_t index, double now);

  PrefixCache& prefixes_;
  const std::int64_t max_tokens_;
  std::vector<Entry> entries_;  // none is a prefix of another that lasts as long
  std::int64_t tokens_ = 0;     // of all entries
};

}  // namespace kvcache::server
