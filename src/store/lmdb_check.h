// Checks the index of an LMDB file before LMDB reads it.
//
// LMDB trusts its file: a flipped bit in a page of the index makes it read or write anywhere. This check
// walks all pages of the index and the list of free pages as the file format describes them, and accepts
// only what LMDB can follow safely:
//
//   meta pages -> free list, main table -> tables of names -> pages of each tree -> runs of large values
//
// Each page has one owner, page numbers are inside the file, and sizes are inside their pages. It does
// not read the values themselves: these have checksums of their own.
//
// Cost: one read for each page of the index, about 2,000 for 100,000 objects.
//
// Thread safety: pure functions. Another process may write to the file meanwhile, if a read transaction
// holds the pages of `transaction`.
// Source: liblmdb's mdb.c, version 0.9 (MDB_page, MDB_node, MDB_db, MDB_meta).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/status.h"

namespace kvcache {

// What the newest valid meta page says.
struct LmdbMeta {
  std::uint64_t page_bytes = 0;
  std::uint64_t last_page = 0;
  std::uint64_t transaction = 0;
};

// Reads the meta pages of the open file and returns the newest. Errors: kCorrupt, with what is wrong, for
// a file that LMDB must not open; kIo.
Result<LmdbMeta> CheckLmdbMeta(int fd);

// Checks all that the state after `transaction` refers to. Errors: kCorrupt, with what is wrong and the
// page; kIo, kOutOfMemory.
Status CheckLmdbFile(int fd, std::uint64_t transaction);

// Returns whether a value that LMDB returned lies in a run of pages of its own number and size, so that it
// may be removed. Values that are small enough lie in the index, which was checked. `map` is the address
// of the file's first byte, `key_bytes` the size of the value's key.
bool LmdbValueIsSound(std::span<const std::byte> value, std::size_t key_bytes,
                      std::size_t page_bytes, const std::byte* map);

// Returns the pages of the file that a value takes, 0 if it lies in the index.
std::int64_t LmdbValuePages(std::size_t value_bytes, std::size_t key_bytes, std::size_t page_bytes);

}  // namespace kvcache
