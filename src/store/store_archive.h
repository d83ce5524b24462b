// Objects of a store in one file, to carry them to another machine. docs/formats/store-object.md has the
// bytes.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>

#include "kvcache/store.h"

namespace kvcache::store {

struct ArchiveCounts {
  std::int64_t objects = 0;
  std::int64_t payload_bytes = 0;
  std::int64_t skipped = 0;  // export: damaged or gone meanwhile; import: the store had no room
};

// Writes the store's objects to a new file, the least recently used first. `key` is the beginning of the
// keys' hexadecimal digits that are taken; empty: all. The file appears when it is complete. Errors: those
// of Store::List and of the file.
Result<ArchiveCounts> ExportObjects(Store& store, const std::string& key, const std::string& path);

// Stores the objects of such a file. Each is verified first. Errors: kCorrupt at the first object that is
// not whole, with its offset: those before it are stored; kNotFound, kIo for the file; kIo if the store
// cannot write.
Result<ArchiveCounts> ImportObjects(Store& store, const std::string& path);

}  // namespace kvcache::store
