// Reads any bytes as a stored object and as the file of a disk store. The decoder accepts an object only
// as it was written, and the check of the index ends without reading outside of the file.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "fuzz_input.h"
#include "store/disk/lmdb_check.h"
#include "store/object_format.h"

namespace kvcache {
namespace {

constexpr std::size_t kIdBytes = sizeof(ObjectId);

// The first bytes are the id that is looked up.
void ReadObject(std::span<const std::byte> input) {
  ObjectId id;
  const std::size_t size = std::min(kIdBytes, input.size());
  if (size > 0) std::memcpy(static_cast<void*>(&id), input.data(), size);
  const auto object = input.subspan(size);
  const auto payload = store::OpenEnvelope(id, object);
  if (!payload.ok()) {
    Check(payload.status().code() == StatusCode::kCorrupt);
    Check(!payload.status().message().empty());
  } else {
    const store::Envelope envelope = store::MakeEnvelope(id, *payload);
    Check(std::equal(envelope.begin(), envelope.end(), object.begin()));
  }
  // What was written can be read.
  const store::Envelope envelope = store::MakeEnvelope(id, object);
  std::vector<std::byte> written(envelope.begin(), envelope.end());
  written.insert(written.end(), object.begin(), object.end());
  const auto read = store::OpenEnvelope(id, written);
  Check(read.ok() && std::equal(read->begin(), read->end(), object.begin(), object.end()));
}

void ReadFile(std::span<const std::byte> input) {
  static const int fd = memfd_create("store", 0);
  Check(fd >= 0 && ftruncate(fd, 0) == 0);
  Check(pwrite(fd, input.data(), input.size(), 0) == static_cast<ssize_t>(input.size()));
  const auto meta = store::CheckLmdbMeta(fd);
  if (!meta.ok()) return Check(!meta.status().message().empty());
  const Status status = store::CheckLmdbFile(fd, meta->transaction).status();
  Check(status.ok() || !status.message().empty());
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (size > 0 && data[0] == 0x6b) {  // 'k': an object
    kvcache::ReadObject(bytes.subspan(1));
  } else {
    kvcache::ReadFile(bytes);
  }
  return 0;
}
