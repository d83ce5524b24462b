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
// A table's description counts the table's pages and entries. LMDB does not read these counters, but its users
// do: wrong ones do not make a file unsafe, and are found and named.
//
// Cost: one read for each page of the index, about 2,000 for 100,000 objects.
//
// Thread safety: pure functions. Another process may write to the file meanwhile, if a read transaction
// holds the pages of `transaction`.
// Source: liblmdb's mdb.c, version 0.9 (MDB_page, MDB_node, MDB_db, MDB_meta).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::store {

// What the newest valid meta page says.
struct LmdbMeta {
  std::uint64_t page_bytes = 0;
  std::uint64_t last_page = 0;
  std::uint64_t transaction = 0;
};

// Reads the meta pages of the open file and returns the newest. Errors: kCorrupt, with what is wrong, for
// a file that LMDB must not open; kIo.
Result<LmdbMeta> CheckLmdbMeta(int fd);

// The counters of a table that are wrong, and what they should be.
struct LmdbCounters {
  std::uint64_t at = 0;                  // offset of `right` in the file
  std::array<std::uint64_t, 4> right{};  // branch pages, leaf pages, pages of large values, entries
};

// An entry of a table. The memory is valid during the call.
struct LmdbEntry {
  std::string_view table;
  std::span<const std::byte> key;
  std::span<const std::byte> value;  // empty if it lies in pages of its own
  std::uint64_t value_bytes = 0;
};
using LmdbVisitor = std::function<void(const LmdbEntry& entry)>;

// Checks all that the state after `transaction` refers to, and calls `visit` with each entry of each table.
// Returns the counters that are wrong. Errors: kCorrupt, with what is wrong and the page; kNotFound if the file
// does not have that state any more; kIo, kOutOfMemory.
Result<std::vector<LmdbCounters>> CheckLmdbFile(int fd, std::uint64_t transaction,
                                                const LmdbVisitor& visit = nullptr);

}  // namespace kvcache::store
