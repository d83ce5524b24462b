#include "tokenizer/unigram/charsmap.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::size_t kMaxCharsmapBytes = std::size_t{1} << 24;
// Limits how much a replacement can lengthen a text, and the time per byte of text.
constexpr std::size_t kMaxStringBytes = 256;

Status Malformed(std::string_view message) {
  return Corrupt(StrCat("precompiled_charsmap: ", message));
}

}  // namespace

Result<Charsmap> Charsmap::Make(std::string_view bytes) {
  std::uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof(trie_bytes) || bytes.size() > kMaxCharsmapBytes) {
    return Malformed(StrCat("it has ", bytes.size(), " bytes; must have 4 to ", kMaxCharsmapBytes));
  }
  std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
  bytes.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes >= bytes.size() || trie_bytes % 4 != 0) {
    return Malformed(StrCat("its trie has ", trie_bytes, " bytes; must be a multiple of 4 below ",
                            bytes.size()));
  }
  Charsmap map;
  map.units_.resize(trie_bytes / 4);
  if (trie_bytes > 0) std::memcpy(map.units_.data(), bytes.data(), trie_bytes);
  map.replacements_ = bytes.substr(trie_bytes);
  KVCACHE_RETURN_IF_ERROR(map.Check());
  map.FindKept();
  return map;
}

// Visits all reachable places (positions of children), depth first. Units may share a place, but
// there must be no cycle. So the length of the longest string below a place is known once all its
// children are visited.
class Charsmap::Checker {
 public:
  explicit Checker(const Charsmap& map) : map_(map), height_(map.units_.size(), kUnseen) {}

  Status Run() {
    KVCACHE_RETURN_IF_ERROR(Enter(map_.OffsetOf(0)));
    while (!path_.empty()) KVCACHE_RETURN_IF_ERROR(Step());
    return Status::Ok();
  }

 private:
  static constexpr std::uint16_t kUnseen = 0xFFFF;
  static constexpr std::uint16_t kOpen = 0xFFFE;  // on the path

  struct Visit {
    std::uint32_t place;
    std::uint32_t byte = 0;     // of the last child visited
    std::uint16_t longest = 0;  // longest string below, so far
  };

  Status Enter(std::uint32_t place) {
    if ((place | 0xFF) >= map_.units_.size()) {
      return Malformed(
          StrCat("it refers to unit ", place | 0xFF, "; must be below ", map_.units_.size()));
    }
    height_[place] = kOpen;
    path_.push_back({place});
    return Status::Ok();
  }

  // Visits the next child of the last place on the path.
  Status Step() {
    Visit& visit = path_.back();
    if (visit.byte == 255) return Leave();
    const std::uint32_t child = visit.place ^ ++visit.byte;
    if (!map_.IsChild(child, static_cast<std::uint8_t>(visit.byte))) return Status::Ok();
    const std::uint32_t below = child ^ map_.OffsetOf(child);
    if (below >= map_.units_.size()) return Enter(below);
    if (map_.EndsHere(child)) KVCACHE_RETURN_IF_ERROR(map_.CheckReplacement(below));
    if (height_[below] == kOpen) return Malformed("its trie has a cycle; must have none");
    return height_[below] == kUnseen ? Enter(below) : UpdateLongest(&visit, height_[below]);
  }

  Status Leave() {
    const Visit done = path_.back();
    path_.pop_back();
    height_[done.place] = done.longest;
    return path_.empty() ? Status::Ok() : UpdateLongest(&path_.back(), done.longest);
  }

  // Records a child that leads to strings of up to `height` more bytes.
  static Status UpdateLongest(Visit* visit, std::uint16_t height) {
    visit->longest = std::max(visit->longest, static_cast<std::uint16_t>(height + 1));
    if (visit->longest <= kMaxStringBytes) return Status::Ok();
    return Malformed(
        StrCat("a string to replace is too long; at most ", kMaxStringBytes, " bytes are allowed"));
  }

  const Charsmap& map_;
  std::vector<std::uint16_t> height_;  // by place
  std::vector<Visit> path_;
};

Status Charsmap::Check() const {
  return units_.empty() ? Status::Ok() : Checker(*this).Run();
}

Status Charsmap::CheckReplacement(std::uint32_t unit) const {
  const std::uint32_t at = units_[unit] & 0x7FFFFFFF;
  if (at >= replacements_.size()) {
    return Malformed(StrCat("it refers to a replacement at byte ", at, "; must be below ",
                            replacements_.size()));
  }
  const std::size_t end = replacements_.find('\0', at);
  if (end == std::string::npos || end - at > kMaxStringBytes) {
    return Malformed(StrCat("the replacement at byte ", at, " is too long or has no end; at most ",
                            kMaxStringBytes, " bytes and a zero byte are allowed"));
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
