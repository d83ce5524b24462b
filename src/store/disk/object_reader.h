// Reads objects of a disk store: copies one from the file, and verifies the copy.
//
// A file can be cut short, and a disk can fail, while an object is read. So nobody but this reads an object in the
// file, and nothing changes after it was verified.
//
// Thread safety: one thread at a time.
#pragma once

#include <lmdb.h>

#include <cstddef>
#include <memory>
#include <span>

#include "kvcache/store.h"
#include "store/disk/lmdb_environment.h"

namespace kvcache::store {

class ObjectReader {
 public:
  // Returns the object's payload, which is valid until the next call. Errors: kNotFound; kCorrupt if the object is
  // damaged or cannot be read; kOutOfMemory; kIo if the file cannot be read.
  Result<std::span<const std::byte>> Read(LmdbEnvironment& environment, const ObjectId& id);

  // Returns whether the header of the pages of the object that was read is right (lmdb_value.h). A wrong one does not
  // change the object.
  bool has_sound_pages() const { return has_sound_pages_; }

  // Copies a value that a transaction found. Returns 0, or a number of LmdbEnvironment::ReadValue or ENOMEM.
  int Copy(const LmdbEnvironment& environment, const MDB_val& value);
  // Returns the payload of the copy. Errors: kCorrupt.
  Result<std::span<const std::byte>> Verify(const ObjectId& id) const;

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  bool has_sound_pages_ = true;
};

}  // namespace kvcache::store
