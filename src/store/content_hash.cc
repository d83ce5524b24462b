#include "store/content_hash.h"

#include <xxhash.h>

#include <cstring>

#include "base/errors.h"
#include "base/sha256.h"

namespace kvcache::store {

Result<StoreHash> StoreHashOf(std::span<const std::byte> bytes) {
  return Guarded("no memory for a SHA-256",
                 [&]() -> Result<StoreHash> { return StoreHash{Sha256Of(bytes)}; });
}

std::array<std::byte, 16> FastHash(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  std::array<std::byte, 16> hash{};
  std::memcpy(hash.data(), canonical.digest, hash.size());
  return hash;
}

std::string HexText(const StoreHash& hash, std::size_t digits) {
  return kvcache::HexText(hash.bytes).substr(0, digits);
}

}  // namespace kvcache::store
