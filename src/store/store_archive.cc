#include "store/store_archive.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "platform/mapped_file.h"
#include "platform/output/new_file.h"
#include "store/content_hash.h"
#include "store/object_format.h"

namespace kvcache::store {
namespace {

constexpr std::string_view kArchiveMagic = "kvexp001";

}  // namespace

Result<ArchiveCounts> ExportObjects(Store& store, const std::string& key, const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(std::vector<StoredObject> all, store.List());
  std::erase_if(
      all, [&](const StoredObject& object) { return !HexText(object.id.key).starts_with(key); });
  std::uint64_t size = kArchiveMagic.size();
  for (const StoredObject& object : all) {
    size += kEnvelopeBytes + static_cast<std::uint64_t>(object.payload_bytes);
  }
  KVCACHE_ASSIGN_OR_RETURN(const auto file, NewFile::Create(path, size));
  KVCACHE_RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(kArchiveMagic))));
  ArchiveCounts counts;
  std::uint64_t at = kArchiveMagic.size();
  for (const StoredObject& object : all) {
    bool is_written = false;
    Status written;
    const Status read = store.Get(object.id, [&](std::span<const std::byte> payload) {
      if (payload.size() != static_cast<std::uint64_t>(object.payload_bytes)) return Status::Ok();
      is_written = true;
      const Envelope envelope = MakeEnvelope(object.id, payload);
      written = file->WriteAt(at, envelope);
      if (written.ok()) written = file->WriteAt(at + envelope.size(), payload);
      return Status::Ok();
    });
    KVCACHE_RETURN_IF_ERROR(written);
    if (!read.ok() && read.code() == StatusCode::kIo) return read;
    if (!is_written) {
      ++counts.skipped;
      continue;
    }
    at += kEnvelopeBytes + static_cast<std::uint64_t>(object.payload_bytes);
    ++counts.objects;
    counts.payload_bytes += object.payload_bytes;
  }
  KVCACHE_RETURN_IF_ERROR(file->Commit());
  return counts;
}

Result<ArchiveCounts> ImportObjects(Store& store, const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() < kArchiveMagic.size() ||
      std::memcmp(bytes.data(), kArchiveMagic.data(), kArchiveMagic.size()) != 0) {
    return Corrupt(StrCat(path, ": is not an export of a store"));
  }
  ArchiveCounts counts;
  for (std::size_t at = kArchiveMagic.size(); at < bytes.size();) {
    const std::span<const std::byte> rest = bytes.subspan(at);
    // Zeros are the place of objects that had gone when the file was written.
    if (std::all_of(rest.begin(), rest.begin() + std::min<std::ptrdiff_t>(8, std::ssize(rest)),
                    [](std::byte byte) { return byte == std::byte{0}; })) {
      break;
    }
    const std::string where = StrCat(path, ": the object at byte ", at);
    const auto described = DescribeEnvelope(rest);
    if (!described.ok()) return Status(described.status()).WithContext(where);
    if (described->payload_bytes > rest.size() - kEnvelopeBytes) {
      return Corrupt(StrCat(where, " is cut"));
    }
    const std::size_t size = kEnvelopeBytes + static_cast<std::size_t>(described->payload_bytes);
    const auto payload = OpenEnvelope(described->id, rest.first(size));
    if (!payload.ok()) return Status(payload.status()).WithContext(where);
    const Status stored = store.Put(described->id, *payload);
    if (stored.code() == StatusCode::kCacheFull) {
      ++counts.skipped;
    } else {
      KVCACHE_RETURN_IF_ERROR(stored);
      ++counts.objects;
      counts.payload_bytes += std::ssize(*payload);
    }
    file.Drop(rest.first(size));
    at += size;
  }
  return counts;
}

}  // namespace kvcache::store
