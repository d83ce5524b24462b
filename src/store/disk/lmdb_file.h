// The files of an LMDB environment: how they are opened, checked before, and removed.
//
// Thread safety: free functions. The caller has the directory's lock (store_directory.h).
#pragma once

#include <lmdb.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "kvcache/status.h"

namespace kvcache::store {

// The names in the directory.
inline constexpr const char* kStoreFile = "/objects.mdb";
inline constexpr const char* kStoreLockFile = "/objects.mdb-lock";  // LMDB's name for it
inline constexpr const char* kWriteLock = "/write-lock";            // who writes
inline constexpr const char* kCopySuffix = ".new";                  // of a copy that is being made

// Opens DIRECTORY/objects.mdb with a map of at most `max_map_bytes`, or makes it, and finishes what a process that
// was killed left behind. A file that is larger has a larger map. If the process may not map as much, the map is
// smaller, but not smaller than the file. Errors: kCorrupt for a file of another kind or version; kIo.
Result<MDB_env*> OpenLmdbFile(const std::string& directory, std::int64_t max_map_bytes);

// Returns an error of LMDB, of the system, or of lmdb_calls.h as a Status that names the store's file.
Status LmdbError(std::string_view doing, const std::string& directory, int number);

// Takes the file's name away. The next OpenLmdbFile makes a new one.
void RemoveLmdbFile(const std::string& directory);

// Gives the file's name to DIRECTORY/objects.mdb.new, which is complete. Errors: kIo.
Status ReplaceLmdbFile(const std::string& directory);

}  // namespace kvcache::store
