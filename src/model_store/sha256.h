// SHA-256, which names the blobs of the model store.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kvcache {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(std::span<const std::byte> bytes);

  // Returns "sha256:" and 64 lower-case hexadecimal digits. REQUIRES: is called once, last.
  std::string Digest();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the digest of `bytes`.
std::string Sha256Digest(std::span<const std::byte> bytes);

// Returns whether `text` is "sha256:" and 64 lower-case hexadecimal digits.
bool IsSha256Digest(std::string_view text);

}  // namespace kvcache
