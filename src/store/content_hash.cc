#include "store/content_hash.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace kvcache {

Result<StoreHash> Sha256(std::span<const std::byte> bytes) {
  StoreHash hash;
  unsigned int size = 0;
  const int done =
      EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(hash.bytes.data()),
                 &size, EVP_sha256(), nullptr);
  if (done != 1 || size != hash.bytes.size()) {
    return Status(StatusCode::kOutOfMemory, "no memory for a SHA-256");
  }
  return hash;
}

std::array<std::byte, 16> FastHash(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  std::array<std::byte, 16> hash{};
  std::memcpy(hash.data(), canonical.digest, hash.size());
  return hash;
}

std::string HexText(const StoreHash& hash, std::size_t digits) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : hash.bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  text.resize(std::min(digits, text.size()));
  return text;
}

}  // namespace kvcache
