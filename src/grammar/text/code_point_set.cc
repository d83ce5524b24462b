#include "grammar/text/code_point_set.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace kvcache {

CodePointSet CodePointSet::Of(std::uint32_t first, std::uint32_t last) {
  CodePointSet set;
  set.ranges_.push_back({first, last});
  return set;
}

void CodePointSet::Add(std::uint32_t first, std::uint32_t last) {
  Add(Of(first, last));
}

void CodePointSet::Add(const CodePointSet& other) {
  std::vector<CodePointRange> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  *this = OfRanges(std::move(all));
}

// The edges of both sets are those of the result, except that equal ones cancel out.
void CodePointSet::Toggle(const CodePointSet& other) {
  std::vector<std::uint32_t> edges;
  for (const CodePointSet* const set : {static_cast<const CodePointSet*>(this), &other}) {
    for (const CodePointRange& range : set->ranges_) {
      edges.insert(edges.end(), {range.first, range.last + 1});
    }
  }
  std::sort(edges.begin(), edges.end());
  std::vector<std::uint32_t> kept;
  for (const std::uint32_t edge : edges) {
    const bool cancels = !kept.empty() && kept.back() == edge;
    cancels ? kept.pop_back() : kept.push_back(edge);
  }
  ranges_.clear();
  for (std::size_t i = 0; i < kept.size(); i += 2) ranges_.push_back({kept[i], kept[i + 1] - 1});
}

CodePointSet CodePointSet::OfRanges(std::vector<CodePointRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  CodePointSet set;
  for (const CodePointRange& range : ranges) {
    if (!set.ranges_.empty() && range.first <= set.ranges_.back().last + 1) {
      set.ranges_.back().last = std::max(set.ranges_.back().last, range.last);
    } else {
      set.ranges_.push_back(range);
    }
  }
  return set;
}

CodePointSet CodePointSet::Complement() const {
  CodePointSet others;
  std::uint32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) others.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) others.ranges_.push_back({next, kLastCodePoint});
  return others;
}

bool CodePointSet::Has(std::uint32_t point) const {
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), point,
                       [](std::uint32_t a, const CodePointRange& b) { return a < b.first; });
  return after != ranges_.begin() && (after - 1)->last >= point;
}

CodePointSet DecimalDigits() {
  return CodePointSet::Of('0', '9');
}

CodePointSet WordCharacters() {
  CodePointSet set = DecimalDigits();
  set.Add('A', 'Z');
  set.Add('a', 'z');
  set.Add('_', '_');
  return set;
}

// WhiteSpace and LineTerminator: tab to carriage return, Zs, and U+FEFF.
CodePointSet WhiteSpace() {
  CodePointSet set = LineTerminators();
  set.Add(0x09, 0x0D);
  for (const std::uint32_t point : {0x20u, 0xA0u, 0x1680u, 0x202Fu, 0x205Fu, 0x3000u, 0xFEFFu}) {
    set.Add(point, point);
  }
  set.Add(0x2000, 0x200A);
  return set;
}

CodePointSet LineTerminators() {
  CodePointSet set = CodePointSet::Of('\n');
  set.Add('\r', '\r');
  set.Add(0x2028, 0x2029);
  return set;
}

std::uint32_t ReadCodePoint(std::string_view text, std::size_t& at) {
  constexpr std::uint32_t kReplacement = 0xFFFD;
  const std::string_view rest = text.substr(at);
  const int length = CharacterLength(rest);
  const auto bytes = static_cast<std::size_t>(std::max(length, 1));
  at += bytes;
  return length > 0 ? CodePointOf(rest.substr(0, bytes)) : kReplacement;
}

std::vector<std::uint32_t> CodePointsOf(std::string_view text) {
  std::vector<std::uint32_t> points;
  for (std::size_t at = 0; at < text.size();) points.push_back(ReadCodePoint(text, at));
  return points;
}

}  // namespace kvcache
