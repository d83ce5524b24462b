// Text that knows, byte by byte, where it came from: written in the template, or brought in by
// the conversation.
//
//   bytes   <|im_start|>user\nHello <|im_end|> you<|im_end|>\n
//   marks   ttttttttttttttttt fffffffffffffffffffff ttttttttttt     (t template, f foreign)
//
// Everything that makes a text out of others (joining, slicing, replacing, stripping) carries
// the marks along. So the rendered prompt says which "<|im_end|>" the template wrote; the other
// one is text that somebody typed, and must not end a turn.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/special_tokens.h"

namespace kvcache::jinja {

enum class Origin : char { kTemplate, kForeign };

class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string_view bytes, Origin origin) : bytes_(bytes), origin_(origin) {}

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  // REQUIRES: at < size().
  Origin origin(std::size_t at) const {
    return marks_.empty() ? origin_ : static_cast<Origin>(marks_[at]);
  }
  // Foreign if one of the bytes [begin, end) is. What is computed from them (a character's upper
  // case, an escape, a formatted date) gets this mark. REQUIRES: begin <= end <= size().
  Origin OriginOf(std::size_t begin, std::size_t end) const;
  Origin OriginOfAll() const { return OriginOf(0, size()); }

  void Append(std::string_view bytes, Origin origin);
  void Append(const MarkedText& text) { Append(text, 0, text.size()); }
  // text[begin, end). REQUIRES: begin <= end <= text.size(); another text.
  void Append(const MarkedText& text, std::size_t begin, std::size_t end);

  MarkedText Substring(std::size_t begin, std::size_t end) const;

  // text[begin, end) where a text of origin `by` said where to cut: if that is foreign, the bytes
  // beside the cuts are too. Otherwise typed text could put the template's bytes together to a mark
  // that the template never wrote: '<X/s>'.replace(content, '').
  // REQUIRES: begin <= end <= size().
  MarkedText CutOut(std::size_t begin, std::size_t end, Origin by) const;
  // Appends it.
  void AppendCut(const MarkedText& text, std::size_t begin, std::size_t end, Origin by);

  // The stretches that are not the template's, in order, none empty, none touching.
  std::vector<TextRange> Foreign() const;

  // What it holds in memory, nearly: bytes and, where they differ, marks.
  std::size_t Footprint() const { return bytes_.size() + marks_.size(); }

 private:
  void Mark(Origin origin, std::size_t count);

  std::string bytes_;
  std::string marks_;  // an Origin per byte; empty while all bytes are of origin_
  Origin origin_ = Origin::kTemplate;
};

}  // namespace kvcache::jinja
