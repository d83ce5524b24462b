// A store of one file for each object, to compare the disk store with: what a store over plain files does at
// least. It keeps an index in memory, which it finds again by looking at all files.
//
//   DIRECTORY/0a/0a3f….kv     envelope and payload; written under another name, synced, and renamed
//
// Thread safety: one thread at a time. Several processes may write; each sees its own objects and those that
// were there when it began.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "kvcache/store.h"

namespace kvcache::bench {

class FileStore final : public Store {
 public:
  enum class Sync : std::uint8_t { kEach, kNever };
  // Reads the directory. Errors: kIo.
  static Result<std::unique_ptr<FileStore>> Open(const std::string& directory,
                                                 std::int64_t budget_bytes, Sync sync);

  Status Get(const ObjectId& id, const Reader& reader) override;
  Status Put(const ObjectId& id, std::span<const std::byte> payload) override;
  Result<bool> Contains(const ObjectId& id) override { return objects_.contains(id); }
  void Touch(std::span<const ObjectId> ids) override;
  Status Remove(const ObjectId& id) override;
  Result<std::vector<StoredObject>> List() override;
  Result<StoreStats> Usage() override;
  StoreTier tier() const override { return StoreTier::kDisk; }

 private:
  struct Object {
    std::int64_t bytes = 0;  // of the file
    std::list<ObjectId>::iterator place;
  };

  FileStore(std::string directory, std::int64_t budget_bytes, Sync sync)
      : directory_(std::move(directory)), budget_bytes_(budget_bytes), sync_(sync) {}
  Status ReadDirectory();
  std::string FileOf(const ObjectId& id) const;
  void Add(const ObjectId& id, std::int64_t bytes);

  const std::string directory_;
  const std::int64_t budget_bytes_;
  const Sync sync_;
  std::map<ObjectId, Object> objects_;
  std::list<ObjectId> order_;  // the least recently used first
  std::int64_t bytes_ = 0;
  std::int64_t evicted_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace kvcache::bench
