#include "store/disk/object_reader.h"

#include <cerrno>
#include <new>
#include <system_error>

#include "base/errors.h"
#include "store/disk/lmdb_calls.h"
#include "store/object_format.h"

namespace kvcache::store {

int ObjectReader::Copy(const LmdbEnvironment& environment, const MDB_val& value) {
  size_ = 0;
  if (value.mv_size > capacity_) {
    capacity_ = 0;
    bytes_.reset();  // before the larger one is taken
    bytes_.reset(new (std::nothrow) std::byte[value.mv_size]);
    if (bytes_ == nullptr) return ENOMEM;
    capacity_ = value.mv_size;
  }
  const int error = environment.ReadValue(value, {bytes_.get(), value.mv_size});
  if (error == 0) size_ = value.mv_size;
  return error;
}

Result<std::span<const std::byte>> ObjectReader::Verify(const ObjectId& id) const {
  return OpenEnvelope(id, {bytes_.get(), size_});
}

Result<std::span<const std::byte>> ObjectReader::Read(LmdbEnvironment& environment,
                                                      const ObjectId& id) {
  int unread = 0;
  const int error = environment.Read([&](MDB_txn* transaction) {
    const LmdbTables& tables = environment.tables();
    MDB_val value{};
    ObjectUsage usage;
    int found = FindUse(transaction, tables, id, usage);
    if (found == 0) found = FindValue(transaction, tables.objects, RecordOf(id), value);
    if (found != 0) return found;
    has_sound_pages_ = environment.CheckRun(value, kIdBytes) != LmdbRun::kWrong;
    unread = Copy(environment, value);
    return unread == kMappingFault ? kMappingFault : 0;  // the file is of no use then
  });
  if (error == MDB_NOTFOUND) return NotFound("the store has no such object");
  if (error != 0) return environment.Error("read", error);
  if (unread == ENOMEM) return OutOfMemory("no memory for an object of the store");
  if (unread != 0) {
    return Corrupt("the object cannot be read: " +
                   std::error_code(unread, std::generic_category()).message());
  }
  return Verify(id);
}

}  // namespace kvcache::store
