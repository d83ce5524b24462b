#include "server/models/pin_book.h"

#include <algorithm>
#include <utility>

#include "engine/prefixes/token_keys.h"

namespace kvcache::server {
namespace {

bool Begins(std::span<const std::int32_t> text, std::span<const std::int32_t> prefix) {
  return prefix.size() <= text.size() && std::equal(prefix.begin(), prefix.end(), text.begin());
}

}  // namespace

void PinBook::Unpin(std::size_t index, double now) {
  const Entry entry = std::move(entries_[index]);
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index));
  tokens_ -= std::ssize(entry.tokens);
  (void)prefixes_.Pin({.keys = KeysOf(entry.tokens), .salt = entry.salt}, now);
}

void PinBook::Pin(std::span<const std::int32_t> tokens, double until, double now,
                  std::uint64_t salt) {
  for (std::size_t i = entries_.size(); i-- > 0;) {
    Entry& entry = entries_[i];
    const bool same = entry.salt == salt;
    const bool covers = same && entry.until >= until && Begins(entry.tokens, tokens);
    if (covers && entry.tokens.size() > tokens.size()) return;
    const bool covered = same && entry.until <= until && Begins(tokens, entry.tokens);
    if (covered || entry.until <= now) Unpin(i, now);
  }
  if (std::ssize(tokens) > max_tokens_) return;
  while (!entries_.empty() && tokens_ + std::ssize(tokens) > max_tokens_) {
    const auto first =
        std::min_element(entries_.begin(), entries_.end(),
                         [](const Entry& a, const Entry& b) { return a.until < b.until; });
    Unpin(static_cast<std::size_t>(first - entries_.begin()), now);
  }
  entries_.push_back({{tokens.begin(), tokens.end()}, until, salt});
  tokens_ += std::ssize(tokens);
  (void)prefixes_.Pin({.keys = KeysOf(tokens), .salt = salt}, until);
}

void PinBook::Clear(double now) {
  while (!entries_.empty()) Unpin(entries_.size() - 1, now);
}

}  // namespace kvcache::server
