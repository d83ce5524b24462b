// SHA-256: nobody can find other bytes with the same hash.
//
// Thread safety: values; each is one thread's at a time.
// Errors: std::bad_alloc.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace kvcache {

using Sha256Hash = std::array<std::byte, 32>;

// Hashes bytes that come in parts.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(std::span<const std::byte> bytes);
  // REQUIRES: is called once, last.
  Sha256Hash Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Sha256Hash Sha256Of(std::span<const std::byte> bytes);

// Returns two lower-case digits for each byte.
std::string HexText(std::span<const std::byte> bytes);

}  // namespace kvcache
