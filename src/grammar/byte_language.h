// A set of byte strings that a grammar has as one symbol, read byte by byte.
//
// Thread safety: a language is a constant; a reader is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvcache {

// Knows which strings may continue. States are numbered as they are found and keep their numbers.
class ByteReader {
 public:
  using State = std::int32_t;
  static constexpr State kDead = -1;

  virtual ~ByteReader() = default;
  // kDead: there is no such string.
  virtual State start() = 0;
  // Returns kDead if no string continues so.
  virtual State Next(State state, unsigned char byte) = 0;
  // Returns whether a string may end here.
  virtual bool Accepts(State state) = 0;
  // Returns whether some answer was given up, because it took too many states.
  virtual bool full() const = 0;
  // Returns how many states were looked at so far, as a measure of the time and memory that they took.
  virtual std::size_t work() const = 0;
};

class ByteLanguage {
 public:
  virtual ~ByteLanguage() = default;
  virtual std::unique_ptr<ByteReader> Reader() const = 0;
};

}  // namespace kvcache
