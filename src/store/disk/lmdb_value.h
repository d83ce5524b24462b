// The pages of a large value in an LMDB file.
//
// A value that is too large for the index lies in a run of pages. The header of the first one repeats what the index
// says: the page's number, and how many pages the run has. LMDB believes the header when it frees the run, so it is
// checked before. A header that is wrong can be made anew from the index.
//
// Thread safety: pure functions; writing a header needs the lock of writers.
// Source: liblmdb's mdb.c, version 0.9 (MDB_page, mdb_ovpage_free).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache::store {

// The layout of LMDB's pages: bytes of an entry before its key, and the flag of the first page of a long value.
inline constexpr std::size_t kLmdbNodeHeader = 8;
inline constexpr std::uint16_t kLmdbOverflow = 0x04;

// Where a value is, as the index says.
struct LmdbValuePlace {
  std::uint64_t at = 0;  // bytes from the file's beginning
  std::size_t value_bytes = 0;
  std::size_t key_bytes = 0;
  std::size_t page_bytes = 0;
};

// Returns the pages of the file that a value takes, 0 if it lies in the index.
std::int64_t LmdbValuePages(std::size_t value_bytes, std::size_t key_bytes, std::size_t page_bytes);

enum class LmdbRun : std::uint8_t { kSound, kWrong, kUnreadable };

// Returns what the header of a value's pages says: whether LMDB may remove the value. Values that lie in the index,
// which was checked, are sound.
LmdbRun CheckLmdbRun(int fd, const LmdbValuePlace& place);

// Writes the header that the index says. Returns whether it could. REQUIRES: the pages are the value's.
bool WriteLmdbRun(int fd, const LmdbValuePlace& place);

}  // namespace kvcache::store
