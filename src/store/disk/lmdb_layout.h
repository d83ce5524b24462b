// The layout of LMDB's pages that is read and written here, in the byte order of the machine that wrote the file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache {

inline constexpr std::size_t kLmdbNodeHeader = 8;     // bytes before a key
inline constexpr std::uint16_t kLmdbOverflow = 0x04;  // flag of the first page of a long value

}  // namespace kvcache
