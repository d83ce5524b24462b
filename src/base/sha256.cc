#include "base/sha256.h"

#include <openssl/evp.h>

#include <new>

namespace kvcache {
namespace {

void Require(int result) {  // OpenSSL's hashes fail for lack of memory only
  if (result != 1) throw std::bad_alloc();
}

}  // namespace

struct Sha256::State {
  State() : context(EVP_MD_CTX_new()) {}
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  EVP_MD_CTX* const context;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (state_->context == nullptr) throw std::bad_alloc();
  Require(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr));
}

Sha256::~Sha256() = default;

void Sha256::Add(std::span<const std::byte> bytes) {
  Require(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()));
}

Sha256Hash Sha256::Finish() {
  Sha256Hash hash;
  Require(
      EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(hash.data()), nullptr));
  return hash;
}

Sha256Hash Sha256Of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.Add(bytes);
  return hash.Finish();
}

std::string HexText(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

}  // namespace kvcache
