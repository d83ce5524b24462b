#include "image/picture_hash.h"

#include <array>
#include <string_view>

#include "base/errors.h"
#include "base/little_endian.h"

namespace kvcache::image {

Result<Sha256Hash> HashOf(const Picture& picture) {
  constexpr std::string_view kForm = "kvcache picture 1";
  return Guarded("no memory for a SHA-256", [&]() -> Result<Sha256Hash> {
    std::array<std::byte, 8> size{};
    WriteLittleEndian(static_cast<std::uint32_t>(picture.width), std::span(size).first(4));
    WriteLittleEndian(static_cast<std::uint32_t>(picture.height), std::span(size).last(4));
    Sha256 hash;
    hash.Add(std::as_bytes(std::span(kForm)));
    hash.Add(size);
    hash.Add(std::as_bytes(std::span(picture.rgb)));
    return hash.Finish();
  });
}

}  // namespace kvcache::image
