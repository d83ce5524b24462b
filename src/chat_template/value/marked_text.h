// Text with an origin per byte: written by the template, or foreign (part of the conversation).
//
//   bytes     <|im_start|>user\nHello <|im_end|> you<|im_end|>\n
//   origins   ttttttttttttttttttfffffffffffffffffffftttttttttttt   (t template, f foreign)
//
// All operations that derive a text from others (joining, slicing, replacing, stripping) keep the
// origins. So the rendered prompt tells which "<|im_end|>" the template wrote. The other one was
// typed and must not end a turn.
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
    return origins_.empty() ? origin_ : static_cast<Origin>(origins_[at]);
  }
  // Returns kForeign if one of the bytes [begin, end) is foreign. A text that is computed from
  // these bytes (an upper-case character, an escape, a formatted date) gets this origin.
  // REQUIRES: begin <= end <= size().
  Origin OriginOf(std::size_t begin, std::size_t end) const;
  Origin OriginOfAll() const { return OriginOf(0, size()); }

  void Append(std::string_view bytes, Origin origin);
  void Append(const MarkedText& text) { Append(text, 0, text.size()); }
  // Appends text[begin, end). REQUIRES: begin <= end <= text.size(); `text` is another object.
  void Append(const MarkedText& text, std::size_t begin, std::size_t end);

  MarkedText Substring(std::size_t begin, std::size_t end) const;

  // Returns text[begin, end), where an argument of origin `by` determined the cuts. If the argument
  // is foreign, the bytes beside the cuts become foreign. Otherwise typed text could assemble a
  // marker that the template never wrote: '<X/s>'.replace(content, '') with the content "X".
  // REQUIRES: begin <= end <= size().
  MarkedText CutOut(std::size_t begin, std::size_t end, Origin by) const;
  // Appends text.CutOut(begin, end, by).
  void AppendCut(const MarkedText& text, std::size_t begin, std::size_t end, Origin by);

  // Returns the foreign ranges, in order, none empty, none adjacent.
  std::vector<TextRange> Foreign() const;

  // Returns the approximate memory: the bytes and, if both origins occur, the origins.
  std::size_t Footprint() const { return bytes_.size() + origins_.size(); }

 private:
  void AddOrigins(Origin origin, std::size_t count);

  std::string bytes_;
  std::string origins_;  // an Origin per byte; empty while all bytes are of origin_
  Origin origin_ = Origin::kTemplate;
};

}  // namespace kvcache::jinja
