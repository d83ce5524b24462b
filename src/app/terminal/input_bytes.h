// Reads the bytes of a file descriptor in blocks, and notices Ctrl-C while it waits.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache::app {

class InputBytes {
 public:
  static constexpr int kEnd = -1;
  static constexpr int kInterrupted = -2;

  // Reads `fd`, which the caller owns. Any other reader of `fd` misses the bytes buffered here.
  explicit InputBytes(int fd) : fd_(fd) {}

  // Waits for the next byte and returns it; kEnd at the end of input, kInterrupted after a signal
  // that CatchInterrupt catches.
  int Next();

  // Waits as Next() does and returns the byte `ahead` bytes behind the next one, which stays in the
  // buffer; kEnd or kInterrupted if none comes.
  int Peek(std::size_t ahead = 0);

  // Returns whether a next byte is buffered or arrives within `milliseconds`.
  bool Follows(int milliseconds);

  // Returns the buffered bytes, valid until the next call.
  std::string_view buffered() const { return std::string_view(buffer_).substr(at_); }
  // Removes bytes from the buffer. REQUIRES: bytes <= buffered().size().
  void Skip(std::size_t bytes);

  // Buffers all bytes that arrive without a pause of kPauseMs between them: one burst.
  void AbsorbBurst();
  // Returns whether the next byte belongs to an absorbed burst.
  bool InBurst() const { return burst_bytes_ > 0; }

  // Discards the buffered bytes.
  void Drop();

  // People pause longer than this between two keys; a terminal that sends a paste does not.
  static constexpr int kPauseMs = 50;

 private:
  // Waits up to `milliseconds` for a block of bytes. Returns 1: read; 0: nothing arrived; kEnd.
  int Fill(int milliseconds);

  int fd_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::size_t burst_bytes_ = 0;
};

}  // namespace kvcache::app
