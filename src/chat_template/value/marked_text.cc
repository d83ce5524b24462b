#include "chat_template/value/marked_text.h"

#include <algorithm>

namespace kvcache::jinja {

std::size_t MarkedText::RunAt(std::size_t at) const {
  const std::vector<Run>& more = buffer_->more;
  const auto after =
      std::upper_bound(more.begin(), more.end(), at,
                       [](std::size_t byte, const Run& run) { return byte < run.begin; });
  return static_cast<std::size_t>(after - more.begin());
}

Origin MarkedText::OriginOf(std::size_t begin, std::size_t end) const {
  if (begin >= end) return Origin::kTemplate;
  if (buffer_->more.empty()) return buffer_->first;
  const std::size_t run = RunAt(begin);
  if (buffer_->At(run).origin == Origin::kForeign) return Origin::kForeign;
  const bool more = run + 1 < buffer_->Runs() && buffer_->At(run + 1).begin < end;
  return more ? Origin::kForeign : Origin::kTemplate;
}

void MarkedText::Own() {
  if (!buffer_) {
    buffer_ = std::make_shared<Buffer>();
    return;
  }
  if (buffer_.use_count() == 1 && buffer_->bytes.size() == size_) return;
  const std::shared_ptr<Buffer> shared = std::exchange(buffer_, std::make_shared<Buffer>());
  buffer_->bytes.assign(shared->bytes, 0, size_);
  buffer_->first = shared->first;
  for (const Run& run : shared->more) {
    if (run.begin < size_) buffer_->more.push_back(run);
  }
}

void MarkedText::AddToBuffer(std::string_view bytes, Origin origin) {
  Buffer& buffer = *buffer_;
  if (buffer.bytes.empty()) {
    buffer.first = origin;
  } else if (buffer.At(buffer.Runs() - 1).origin != origin) {
    buffer.more.push_back({buffer.bytes.size(), origin});
  }
  buffer.bytes.append(bytes);
  size_ = buffer.bytes.size();
}

// `text` may have the same buffer, so nothing of it is kept while the buffer grows.
void MarkedText::AddToBuffer(const MarkedText& text, std::size_t begin, std::size_t end) {
  const std::shared_ptr<Buffer> source = text.buffer_;
  for (std::size_t run = text.RunAt(begin); begin < end; ++run) {
    const Origin origin = source->At(run).origin;
    const std::size_t next =
        run + 1 < source->Runs() ? std::min(source->At(run + 1).begin, end) : end;
    AddToBuffer(std::string_view(source->bytes).substr(begin, next - begin), origin);
    begin = next;
  }
}

void MarkedText::Append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  Own();
  AddToBuffer(bytes, origin);
}

void MarkedText::Append(const MarkedText& text, std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  if (empty() && begin == 0 && end == text.size()) {
    *this = text;
    return;
  }
  Own();
  AddToBuffer(text, begin, end);
}

Status MarkedText::Extend(const MarkedText& text, Budget& budget) {
  if (empty()) {
    *this = text;
    return budget.Spend(Budget::kStep);
  }
  KVCACHE_RETURN_IF_ERROR(budget.Spend(text.Footprint()));
  const bool in_place =
      buffer_ && buffer_->bytes.size() == size_ && buffer_->charge.IsOf(budget) && !text.empty();
  if (in_place) {
    AddToBuffer(text, 0, text.size());
  } else {
    KVCACHE_RETURN_IF_ERROR(budget.Spend(Footprint()));
    Append(text);
  }
  return Hold(budget);
}

Status MarkedText::Hold(Budget& budget) const {
  if (!buffer_) return Status::Ok();
  return buffer_->charge.Hold(
      sizeof(Buffer) + buffer_->bytes.size() + buffer_->more.size() * sizeof(Run), budget);
}

MarkedText MarkedText::Constant(std::string_view bytes, Origin origin) {
  MarkedText text(bytes, origin);
  if (text.buffer_) text.buffer_->charge.Fix();
  return text;
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
  const std::string_view bytes = text.bytes();
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
  if (!buffer_) return ranges;
  for (std::size_t run = 0; run < buffer_->Runs(); ++run) {
    const auto [begin, origin] = buffer_->At(run);
    if (origin != Origin::kForeign || begin >= size_) continue;
    const bool last = run + 1 == buffer_->Runs();
    ranges.push_back({begin, last ? size_ : std::min(size_, buffer_->At(run + 1).begin)});
  }
  return ranges;
}

}  // namespace kvcache::jinja
