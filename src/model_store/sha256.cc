#include "model_store/sha256.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <new>

namespace kvcache {
namespace {

constexpr std::string_view kPrefix = "sha256:";
constexpr std::size_t kDigits = 64;

void Require(int result) {  // OpenSSL's hashes fail for lack of memory only
  if (result != 1) throw std::bad_alloc();
}

}  // namespace

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (state_->context == nullptr) throw std::bad_alloc();
  Require(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr));
}

Sha256::~Sha256() {
  EVP_MD_CTX_free(state_->context);
}

void Sha256::Add(std::span<const std::byte> bytes) {
  Require(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()));
}

std::string Sha256::Digest() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned int size = 0;
  Require(EVP_DigestFinal_ex(state_->context, hash.data(), &size));
  std::string text(kPrefix);
  for (unsigned int i = 0; i < size; ++i) {
    text += "0123456789abcdef"[hash[i] >> 4];
    text += "0123456789abcdef"[hash[i] & 15];
  }
  return text;
}

std::string Sha256Digest(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.Add(bytes);
  return hash.Digest();
}

bool IsSha256Digest(std::string_view text) {
  if (!text.starts_with(kPrefix) || text.size() != kPrefix.size() + kDigits) return false;
  text.remove_prefix(kPrefix.size());
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace kvcache
