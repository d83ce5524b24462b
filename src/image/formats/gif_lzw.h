// Decompresses the pixels of a GIF: LZW with codes of up to 12 bits, in blocks of up to 255 bytes.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "image/formats/byte_reader.h"
#include "kvcache/status.h"

namespace kvcache::image {

// Sets all `indices` from the bytes of `file`, whose next one is the size of the smallest codes. Bytes behind the last
// pixel stay unread. Errors: kCorrupt.
Status ReadGifPixels(ByteReader& file, std::span<std::uint8_t> indices);

}  // namespace kvcache::image
