#include "speculation/lookup_drafter.h"

#include <algorithm>
#include <memory>

#include "base/errors.h"
#include "base/keyed_hash.h"

namespace kvcache {
namespace {

std::size_t IndexOf(std::size_t length) {
  const auto& lengths = LookupDrafter::kLengths;
  return static_cast<std::size_t>(std::find(lengths.begin(), lengths.end(), length) -
                                  lengths.begin());
}

constexpr char kNoMemory[] = "no memory for the drafter's text";

}  // namespace

std::unique_ptr<Drafter> MakeLookupDrafter() {
  return std::make_unique<LookupDrafter>();
}

Status LookupDrafter::Begin(std::span<const std::int32_t> text) {
  const auto last = std::span<const std::int32_t>(tokens_).subspan(begin_);
  const bool continues =
      last.size() <= text.size() && std::equal(last.begin(), last.end(), text.begin());
  if (!continues) begin_ = tokens_.size();
  if (tokens_.size() > kMaxTokens) {
    tokens_.clear();
    begin_ = 0;
    for (auto& places : places_) places.clear();
  }
  return Guarded(kNoMemory, [&] {
    for (const std::int32_t token : text.subspan(tokens_.size() - begin_)) Append(token);
  });
}

Status LookupDrafter::Add(std::int32_t token) {
  return Guarded(kNoMemory, [&] { Append(token); });
}

// The tables learn of the last tokens when something follows them, so they never name the end.
void LookupDrafter::Append(std::int32_t token) {
  for (std::size_t i = 0; i < kLengths.size(); ++i) {
    if (tokens_.size() - begin_ < kLengths[i]) continue;
    places_[i][HashOfLast(kLengths[i])] = tokens_.size();
  }
  tokens_.push_back(token);
}

std::uint64_t LookupDrafter::HashOfLast(std::size_t count) const {
  std::uint64_t hash = count;
  for (auto at = tokens_.end() - static_cast<std::ptrdiff_t>(count); at != tokens_.end(); ++at) {
    hash = MixHash(hash ^ kHashOdd1, static_cast<std::uint32_t>(*at) ^ kHashOdd2);
  }
  return hash;
}

Status LookupDrafter::Propose(int max, std::vector<std::int32_t>& drafts) {
  return Guarded(kNoMemory, [&] {
    for (const std::size_t length : kLengths) {
      if (ProposeAfter(length, max, drafts)) break;
    }
  });
}

bool LookupDrafter::ProposeAfter(std::size_t length, int max,
                                 std::vector<std::int32_t>& drafts) const {
  if (tokens_.size() - begin_ < length) return false;
  const auto& places = places_[IndexOf(length)];
  const auto found = places.find(HashOfLast(length));
  if (found == places.end()) return false;
  const auto after = tokens_.begin() + static_cast<std::ptrdiff_t>(found->second);
  const auto size = static_cast<std::ptrdiff_t>(length);
  if (!std::equal(after - size, after, tokens_.end() - size)) return false;  // with the same hash
  const std::ptrdiff_t count = std::min<std::ptrdiff_t>(max, tokens_.end() - after);
  drafts.insert(drafts.end(), after, after + count);
  return count > 0;
}

}  // namespace kvcache
