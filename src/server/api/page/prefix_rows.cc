#include "server/api/page/prefix_rows.h"

#include <algorithm>
#include <utility>

namespace kvcache::server::page {

bool PrefixRows::IsFolded(const PrefixNodeView& node, const Place& place) {
  return node.keys.size() == 1 && node.children > 1 && node.live == 0 && !node.pinned &&
         !place.joins && place.folded.size() < kMaxFolded;
}

bool PrefixRows::Add(const PrefixNodeView& node) {
  const auto above = places_.find(node.parent);
  Place place = above == places_.end() ? Place{} : above->second;
  const bool new_row = !place.joins && !IsFolded(node, place);
  if (nodes_ == limits_.nodes || (new_row && rows_.size() == limits_.rows)) return all_ = false;
  ++nodes_;
  if (!place.joins && !new_row) {
    place.folded.push_back(node.keys.front());
    places_.emplace(node.number, std::move(place));
    return true;
  }
  if (new_row) {
    rows_.push_back({.number = node.number, .parent = place.parent, .begin = place.begin});
    Append(place.folded, rows_.back());
  }
  Extend(node, rows_.back());
  if (node.children == 0) return true;
  places_.emplace(
      node.number,
      Place{.parent = rows_.back().number, .begin = node.end, .joins = node.children == 1});
  return true;
}

void PrefixRows::Extend(const PrefixNodeView& node, PrefixRow& row) {
  Append(node.keys, row);
  row.end = node.end;
  if (row.parts.size() == kMaxParts) row.parts.pop_back();
  row.parts.push_back({node.end, node.has_state});
  row.requests += node.live;
  row.pinned |= node.pinned;
}

void PrefixRows::Append(std::span<const PrefixKey> keys, PrefixRow& row) {
  constexpr std::size_t kFirst = 2 * kShownKeys;
  if (row.last.empty() && row.first.size() + keys.size() <= kFirst) {
    row.first.insert(row.first.end(), keys.begin(), keys.end());
    return;
  }
  if (row.last.empty()) {
    const std::size_t more = kShownKeys - std::min(kShownKeys, row.first.size());
    const auto taken = keys.first(std::min(keys.size(), more));
    row.last = row.first;
    row.first.insert(row.first.end(), taken.begin(), taken.end());
    row.first.resize(kShownKeys);
  }
  const auto end = keys.last(std::min(keys.size(), kShownKeys));
  row.last.insert(row.last.end(), end.begin(), end.end());
  row.last.erase(row.last.begin(), row.last.end() - static_cast<std::ptrdiff_t>(kShownKeys));
}

namespace {

// Takes the part of `keys`, which begin at `at`, that lies in [from, from + most).
void TakeRange(std::span<const PrefixKey> keys, Position at, Position from, Position max,
               std::vector<PrefixKey>& taken) {
  const Position size = static_cast<Position>(keys.size());
  const Position begin = std::clamp(from - at, 0, size);
  const Position end =
      static_cast<Position>(std::clamp<std::int64_t>(std::int64_t{from} + max - at, begin, size));
  const auto part =
      keys.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  taken.insert(taken.end(), part.begin(), part.end());
}

}  // namespace

RowKeys KeysOfRow(const PrefixCache& prefixes, std::uint64_t salt, std::uint64_t number,
                  Position from, Position max) {
  PrefixRows rows({});
  RowKeys found;
  prefixes.Visit(salt, [&](const PrefixNodeView& node) {
    const std::size_t count = rows.rows().size();
    const Position end = rows.rows().empty() ? 0 : rows.rows().back().end;
    (void)rows.Add(node);
    const bool is_new = rows.rows().size() > count;
    const bool joined = !is_new && !rows.rows().empty() && rows.rows().back().end > end;
    if ((!is_new && !joined) || rows.rows().back().number != number) return found.length == 0;
    const PrefixRow& row = rows.rows().back();
    // The keys of folded nodes, which a row begins with, are few enough to be in `first`.
    const auto folded = static_cast<std::size_t>(is_new ? node.begin - row.begin : 0);
    TakeRange(std::span(row.first).first(folded), 0, from, max, found.keys);
    TakeRange(node.keys, node.begin - row.begin, from, max, found.keys);
    found.length = row.end - row.begin;
    return true;
  });
  return found;
}

}  // namespace kvcache::server::page
