// Names a place in a prompt by its line.
//
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvcache/prefix_cache.h"
#include "kvcache_engine/engine.h"

namespace kvcache::server {

// The line of a prompt where it leaves the nearest cached prompt: at most 64 tokens and 100 bytes on each side, in
// whole characters.
struct PromptDifference {
  std::string before{};  // what both have
  std::string prompt{};  // the token of the prompt; from its first line break on, nothing follows
  std::string after{};
  std::string cached{};  // the token that the cached prompt has instead; empty: it is not known

  // Returns the line, without its end.
  std::string line() const { return before + prompt.substr(0, prompt.find('\n')) + after; }
};

// Returns the line around the token at `difference.position`, which is in the prompt.
PromptDifference LineAt(const Engine& engine, std::span<const std::int32_t> tokens,
                        const PrefixDifference& difference);

}  // namespace kvcache::server
