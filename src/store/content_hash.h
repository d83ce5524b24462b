// Names bytes by their content.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvcache/status.h"
#include "kvcache/store.h"

namespace kvcache::store {

// Returns the SHA-256 of `bytes`. Errors: kOutOfMemory.
Result<StoreHash> StoreHashOf(std::span<const std::byte> bytes);

// Returns 16 bytes that depend on all of `bytes`, as fast as memory is read. It tells apart what nobody
// made to collide.
std::array<std::byte, 16> FastHash(std::span<const std::byte> bytes);

// Returns the first `digits` digits of a hash in hexadecimal; all 64 without a limit.
std::string HexText(const StoreHash& hash, std::size_t digits = 64);

}  // namespace kvcache::store
