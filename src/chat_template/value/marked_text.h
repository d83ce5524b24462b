// Text with an origin per byte: written by the template, or foreign (part of the conversation).
//
//   bytes     <|im_start|>user\nHello <|im_end|> you<|im_end|>\n
//   origins   ttttttttttttttttttfffffffffffffffffffftttttttttttt   (t template, f foreign)
//
// All operations that derive a text from others (joining, slicing, replacing, stripping) keep the
// origins. So the rendered prompt tells which "<|im_end|>" the template wrote. The other one was
// typed and must not end a turn.
//
// Texts share their buffers. A text is a beginning of its buffer, so a longer text can be made of
// it in place (Extend):
//
//   buffer   Hello, world      one run, foreign
//   a        Hello             size 5
//   b        Hello, world      size 12, made by extending a
//
// Thread safety: values. Copies may be used by several threads if none of them is extended: only
// buffers that a budget pays for are, and a budget belongs to one rendering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template/value/budget.h"
#include "tokenizer/special_tokens.h"

namespace kvcache::jinja {

enum class Origin : char { kTemplate, kForeign };

class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string_view bytes, Origin origin) { Append(bytes, origin); }

  std::string_view bytes() const {
    return buffer_ ? std::string_view(buffer_->bytes.data(), size_) : std::string_view();
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // REQUIRES: at < size().
  Origin origin(std::size_t at) const { return OriginOf(at, at + 1); }
  // Returns kForeign if one of the bytes [begin, end) is foreign. A text that is computed from
  // these bytes (an upper-case character, an escape, a formatted date) gets this origin.
  // REQUIRES: begin <= end <= size().
  Origin OriginOf(std::size_t begin, std::size_t end) const;
  Origin OriginOfAll() const { return OriginOf(0, size()); }

  void Append(std::string_view bytes, Origin origin);
  void Append(const MarkedText& text) { Append(text, 0, text.size()); }
  // Appends text[begin, end). REQUIRES: begin <= end <= text.size().
  void Append(const MarkedText& text, std::size_t begin, std::size_t end);

  // Appends `text` and charges the work and the memory. Costs the bytes of `text` only, if this
  // text is a whole buffer that `budget` pays for. Other texts of the buffer do not change.
  Status Extend(const MarkedText& text, Budget& budget);
  // Charges the memory. Returns kUnsupported if there is less.
  Status Hold(Budget& budget) const;

  // Returns a text that several renderings may share.
  static MarkedText Constant(std::string_view bytes, Origin origin);

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

  // Returns the approximate memory: the bytes and the runs.
  std::size_t Footprint() const { return buffer_ ? size_ + buffer_->more.size() * sizeof(Run) : 0; }

 private:
  // The bytes from `begin` to the next run.
  struct Run {
    std::size_t begin;
    Origin origin;
  };
  struct Buffer {
    std::string bytes;
    Origin first = Origin::kTemplate;  // the origin of the first run
    std::vector<Run> more;             // the runs behind it; two neighbours have different origins
    MemoryCharge charge;

    std::size_t Runs() const { return 1 + more.size(); }
    Run At(std::size_t run) const { return run == 0 ? Run{0, first} : more[run - 1]; }
  };

  // Makes this text the only one of its buffer, and the whole of it.
  void Own();
  void AddToBuffer(std::string_view bytes, Origin origin);
  void AddToBuffer(const MarkedText& text, std::size_t begin, std::size_t end);
  // Returns the index of the run of the byte `at`.
  std::size_t RunAt(std::size_t at) const;

  std::shared_ptr<Buffer> buffer_;  // null if empty
  std::size_t size_ = 0;
};

}  // namespace kvcache::jinja
