// Bytes of a file descriptor, read in blocks; Ctrl-C is noticed while it waits.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache::cli {

class InputBytes {
 public:
  static constexpr int kEnd = -1;
  static constexpr int kInterrupted = -2;

  // Reads `fd`, which stays the caller's. Whoever else reads it misses the bytes buffered here.
  explicit InputBytes(int fd) : fd_(fd) {}

  // The next byte, kEnd, or kInterrupted after a SIGINT (see CatchInterrupt). Waits for it.
  int Next();

  // The byte `ahead` bytes behind the next one, which it waits for as Next() does; kEnd or
  // kInterrupted if none comes.
  int Peek(std::size_t ahead = 0);

  // Whether a next byte is there or comes within `milliseconds`.
  bool Follows(int milliseconds);

  // The bytes that are buffered, and skips some of them. REQUIRES: bytes <= buffered().size().
  std::string_view buffered() const { return std::string_view(buffer_).substr(at_); }
  void Skip(std::size_t bytes);

  // Buffers all that follows without a pause of kPauseMs: one burst.
  void AbsorbBurst();
  // Whether the next byte belongs to an absorbed burst.
  bool InBurst() const { return burst_bytes_ > 0; }

  // Forgets the buffered bytes.
  void Drop();

  // People pause longer between two keys; a terminal that sends a paste does not.
  static constexpr int kPauseMs = 50;

 private:
  // Waits up to `milliseconds`, reads a block. 1: read; 0: nothing came; kEnd.
  int Fill(int milliseconds);

  int fd_;
  std::string buffer_;
  std::size_t at_ = 0;
  std::size_t burst_bytes_ = 0;
};

}  // namespace kvcache::cli
