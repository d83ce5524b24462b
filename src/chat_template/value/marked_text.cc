#include "chat_template/value/marked_text.h"

#include <algorithm>

namespace kvcache::jinja {

// Records the origin of `count` bytes that are appended next.
void MarkedText::AddOrigins(Origin origin, std::size_t count) {
  if (bytes_.empty()) {
    origin_ = origin;
    return;
  }
  if (origins_.empty()) {
    if (origin == origin_) return;
    origins_.assign(bytes_.size(), static_cast<char>(origin_));
  }
  origins_.append(count, static_cast<char>(origin));
}

Origin MarkedText::OriginOf(std::size_t begin, std::size_t end) const {
  if (origins_.empty()) return begin < end ? origin_ : Origin::kTemplate;
  const auto at = [this](std::size_t i) {
    return origins_.begin() + static_cast<std::ptrdiff_t>(i);
  };
  const bool foreign =
      std::find(at(begin), at(end), static_cast<char>(Origin::kForeign)) != at(end);
  return foreign ? Origin::kForeign : Origin::kTemplate;
}

void MarkedText::Append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  AddOrigins(origin, bytes.size());
  bytes_.append(bytes);
}

void MarkedText::Append(const MarkedText& text, std::size_t begin, std::size_t end) {
  const std::string_view bytes(text.bytes_);
  if (text.origins_.empty()) return Append(bytes.substr(begin, end - begin), text.origin_);
  while (begin < end) {
    std::size_t run = begin + 1;
    while (run < end && text.origins_[run] == text.origins_[begin]) ++run;
    Append(bytes.substr(begin, run - begin), text.origin(begin));
    begin = run;
  }
}

MarkedText MarkedText::Substring(std::size_t begin, std::size_t end) const {
  MarkedText part;
  part.Append(*this, begin, end);
  return part;
}

void MarkedText::AppendCut(const MarkedText& text, std::size_t begin, std::size_t end, Origin by) {
  const bool foreign_edges = by == Origin::kForeign && begin < end;
  const std::size_t first = foreign_edges && begin > 0 ? begin + 1 : begin;
  const std::size_t last = foreign_edges && end < text.size() ? std::max(first, end - 1) : end;
  const std::string_view bytes(text.bytes_);
  Append(bytes.substr(begin, first - begin), Origin::kForeign);
  Append(text, first, last);
  Append(bytes.substr(last, end - last), Origin::kForeign);
}

MarkedText MarkedText::CutOut(std::size_t begin, std::size_t end, Origin by) const {
  MarkedText part;
  part.AppendCut(*this, begin, end, by);
  return part;
}

std::vector<TextRange> MarkedText::Foreign() const {
  std::vector<TextRange> ranges;
  for (std::size_t at = 0; at < size(); ++at) {
    if (origin(at) != Origin::kForeign) continue;
    if (!ranges.empty() && ranges.back().end == at) {
      ++ranges.back().end;
    } else {
      ranges.push_back({at, at + 1});
    }
  }
  return ranges;
}

}  // namespace kvcache::jinja
