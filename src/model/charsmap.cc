#include "model/charsmap.h"

#include <algorithm>
#include <cstring>

namespace kvcache {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 24;
constexpr std::size_t kLongest = 1024;  // so that no text grows out of proportion

Status Corrupt(std::string message) {
  return Status(StatusCode::kCorrupt, "precompiled_charsmap: " + std::move(message));
}

}  // namespace

Result<Charsmap> Charsmap::Make(std::string_view bytes) {
  std::uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof(trie_bytes) || bytes.size() > kMostBytes) {
    return Corrupt(std::to_string(bytes.size()) + " bytes, expected 4 to " +
                   std::to_string(kMostBytes));
  }
  std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
  bytes.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes >= bytes.size() || trie_bytes % 4 != 0) {
    return Corrupt("a trie of " + std::to_string(trie_bytes) + " bytes in " +
                   std::to_string(bytes.size()));
  }
  Charsmap map;
  map.units_.resize(trie_bytes / 4);
  if (trie_bytes > 0) std::memcpy(map.units_.data(), bytes.data(), trie_bytes);
  map.replacements_ = bytes.substr(trie_bytes);
  KVCACHE_RETURN_IF_ERROR(map.Check());
  map.FindKept();
  return map;
}

// Goes through all that can be reached.
Status Charsmap::Check() const {
  if (units_.empty()) return Status::Ok();
  std::vector<bool> seen(units_.size());
  std::vector<std::uint32_t> pending = {OffsetOf(0)};  // where children lie
  while (!pending.empty()) {
    const std::uint32_t children = pending.back();
    pending.pop_back();
    if ((children | 0xFF) >= units_.size()) {
      return Corrupt("unit " + std::to_string(children | 0xFF) + " of " +
                     std::to_string(units_.size()));
    }
    for (std::uint32_t byte = 1; byte < 256; ++byte) {
      const std::uint32_t child = children ^ byte;
      if (seen[child] || !IsChild(child, static_cast<std::uint8_t>(byte))) continue;
      seen[child] = true;
      const std::uint32_t below = child ^ OffsetOf(child);
      pending.push_back(below);
      if (below < units_.size() && EndsHere(child))
        KVCACHE_RETURN_IF_ERROR(CheckReplacement(below));
    }
  }
  return Status::Ok();
}

Status Charsmap::CheckReplacement(std::uint32_t unit) const {
  const std::uint32_t at = units_[unit] & 0x7FFFFFFF;
  if (at >= replacements_.size()) {
    return Corrupt("replacement at " + std::to_string(at) + " of " +
                   std::to_string(replacements_.size()) + " bytes");
  }
  const std::size_t end = replacements_.find('\0', at);
  if (end == std::string::npos || end - at > kLongest) {
    return Corrupt("replacement at " + std::to_string(at) + " of more than " +
                   std::to_string(kLongest) + " bytes, or without an end");
  }
  return Status::Ok();
}

void Charsmap::FindKept() {
  for (std::uint32_t byte = 1; byte < 128 && !units_.empty(); ++byte) {
    const std::uint32_t child = OffsetOf(0) ^ byte;
    if (!IsChild(child, static_cast<std::uint8_t>(byte))) continue;
    const std::uint32_t below = child ^ OffsetOf(child);
    bool keeps = !EndsHere(child);
    for (std::uint32_t next = 1; next < 128; ++next) {
      keeps = keeps && !IsChild(below ^ next, static_cast<std::uint8_t>(next));
    }
    keeps_[byte] = keeps;
  }
}

Charsmap::Match Charsmap::Longest(std::string_view text) const {
  Match match;
  if (units_.empty()) return match;
  std::uint32_t children = OffsetOf(0);
  for (std::size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const std::uint32_t child = children ^ byte;
    if (!IsChild(child, byte)) break;
    children = child ^ OffsetOf(child);
    if (!EndsHere(child)) continue;
    const char* replacement = replacements_.data() + (units_[children] & 0x7FFFFFFF);
    match = {i + 1, std::string_view(replacement)};
  }
  return match;
}

}  // namespace kvcache
