#include "store/object_reader.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

#include "base/errors.h"
#include "store/lmdb_calls.h"
#include "store/object_format.h"

namespace kvcache {
namespace {

constexpr std::size_t kPiece = std::size_t{256} << 10;  // stays in the cache until it is verified

}  // namespace

int ObjectReader::Copy(const LmdbEnvironment& environment, const MDB_val& value) {
  size_ = 0;
  if (value.mv_size > capacity_) {
    capacity_ = 0;
    bytes_.reset();  // before the larger one is taken
    bytes_.reset(new (std::nothrow) std::byte[value.mv_size]);
    if (bytes_ == nullptr) return ENOMEM;
    capacity_ = value.mv_size;
  }
  if (!check_.Begin(value.mv_size)) return ENOMEM;
  for (std::size_t at = 0; at < value.mv_size; at += kPiece) {
    const MDB_val from{std::min(kPiece, value.mv_size - at),
                       static_cast<std::byte*>(value.mv_data) + at};
    const std::span<std::byte> piece(bytes_.get() + at, from.mv_size);
    if (const int error = environment.ReadValue(from, piece); error != 0) return error;
    check_.Add(piece);
  }
  size_ = value.mv_size;
  return 0;
}

Result<std::span<const std::byte>> ObjectReader::Verify(const ObjectId& id) const {
  return check_.Open(id, {bytes_.get(), size_});
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
  if (error == MDB_NOTFOUND) return Status(StatusCode::kNotFound, "the store has no such object");
  if (error != 0) return environment.Error("read", error);
  if (unread == ENOMEM)
    return Status(StatusCode::kOutOfMemory, "no memory for an object of the store");
  if (unread != 0) {
    return Corrupt("the object cannot be read: " +
                   std::error_code(unread, std::generic_category()).message());
  }
  return Verify(id);
}

}  // namespace kvcache
