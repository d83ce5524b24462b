#include "image/formats/gif_lzw.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::image {
namespace {

constexpr int kMaxCodeBits = 12;
constexpr std::uint32_t kMaxCodes = 1u << kMaxCodeBits;

// The codes of a stream of blocks, the lowest bits first.
class CodeReader {
 public:
  explicit CodeReader(ByteReader& file) : file_(file) {}

  // Returns the next code, or kMaxCodes if the stream ends before it does.
  std::uint32_t Next(int bits) {
    while (filled_ < bits) {
      if (block_left_ == 0) block_left_ = file_.U8();
      if (block_left_ == 0 || file_.left() == 0) return kMaxCodes;
      --block_left_;
      buffer_ |= file_.U8() << filled_;
      filled_ += 8;
    }
    const std::uint32_t code = buffer_ & ((1u << bits) - 1);
    buffer_ >>= bits;
    filled_ -= bits;
    return code;
  }

 private:
  ByteReader& file_;
  std::uint32_t block_left_ = 0;
  std::uint32_t buffer_ = 0;
  int filled_ = 0;  // bits of the buffer
};

// Each code stands for a text: that of an earlier code, with one index behind.
class CodeTable {
 public:
  explicit CodeTable(std::uint32_t literals) : literals_(literals), size_(literals + 2) {
    for (std::uint32_t i = 0; i < literals; ++i)
      entries_[i] = {0, 1, static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(i)};
  }

  std::uint32_t size() const { return size_; }
  std::uint32_t clear_code() const { return literals_; }
  std::uint32_t end_code() const { return literals_ + 1; }
  void Clear() { size_ = literals_ + 2; }
  bool full() const { return size_ == kMaxCodes; }

  std::uint8_t First(std::uint32_t code) const { return entries_[code].first; }

  // REQUIRES: !full().
  void Add(std::uint32_t prefix, std::uint8_t last) {
    const Entry& before = entries_[prefix];
    entries_[size_++] = {static_cast<std::uint16_t>(prefix),
                         static_cast<std::uint16_t>(before.length + 1), before.first, last};
  }

  // Writes the text of a code, or as much of it as `out` holds. Returns its length there.
  std::size_t Write(std::uint32_t code, std::span<std::uint8_t> out) const {
    const std::size_t length = std::min<std::size_t>(entries_[code].length, out.size());
    for (std::size_t at = entries_[code].length; at-- > 0; code = entries_[code].prefix) {
      if (at < length) out[at] = entries_[code].last;
    }
    return length;
  }

 private:
  struct Entry {
    std::uint16_t prefix;
    std::uint16_t length;
    std::uint8_t first;
    std::uint8_t last;
  };

  std::uint32_t literals_;
  std::uint32_t size_;
  std::array<Entry, kMaxCodes> entries_{};
};

}  // namespace

Status ReadGifPixels(ByteReader& file, std::span<std::uint8_t> indices) {
  const int literal_bits = static_cast<int>(file.U8());
  if (literal_bits < 1 || literal_bits > 8) {
    return Corrupt(StrCat("its smallest codes have ", literal_bits, " bits; GIF has 1 to 8"));
  }
  CodeReader codes(file);
  CodeTable table(1u << literal_bits);
  int bits = literal_bits + 1;
  std::size_t filled = 0;
  std::uint32_t before = kMaxCodes;  // none: at the beginning, and behind a clear code
  while (filled < indices.size()) {
    const std::uint32_t code = codes.Next(bits);
    if (code == kMaxCodes || code == table.end_code()) {
      return Corrupt(StrCat("it ends at pixel ", filled, " of ", indices.size()));
    }
    if (code == table.clear_code()) {
      table.Clear();
      bits = literal_bits + 1;
      before = kMaxCodes;
      continue;
    }
    const bool is_next = code == table.size() && before != kMaxCodes && !table.full();
    if (code >= table.size() && !is_next) {
      return Corrupt(StrCat("code ", code, " comes before it is defined"));
    }
    if (before != kMaxCodes && !table.full()) {
      table.Add(before, table.First(is_next ? before : code));
      if (table.size() == 1u << bits && bits < kMaxCodeBits) ++bits;
    }
    filled += table.Write(code, indices.subspan(filled));
    before = code;
  }
  return Status::Ok();
}

}  // namespace kvcache::image
