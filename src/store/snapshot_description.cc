#include "store/snapshot_description.h"

#include <cstring>
#include <string_view>

#include "base/errors.h"
#include "base/little_endian.h"

namespace kvcache::store {
namespace {

constexpr std::string_view kSnapshotMagic = "kvsnap01";
constexpr std::size_t kHeaderBytesAt = 8;
constexpr std::size_t kKindAt = 24;
constexpr std::size_t kBeginAt = 28;
constexpr std::size_t kEndAt = 32;
constexpr std::size_t kPayloadBytesAt = 36;
constexpr std::size_t kTextAt = 44;
constexpr const char* kKinds[] = {"causal", "encoder", "wrapper", "recurrent"};

std::uint32_t Number32At(std::span<const std::byte> bytes, std::size_t at) {
  return static_cast<std::uint32_t>(ReadLittleEndian(bytes.subspan(at, 4)));
}

bool IsSnapshot(std::span<const std::byte> payload) {
  return payload.size() >= kTextAt + 4 &&
         std::memcmp(payload.data(), kSnapshotMagic.data(), kSnapshotMagic.size()) == 0;
}

}  // namespace

Result<SnapshotDescription> DescribeSnapshot(std::span<const std::byte> payload) {
  if (!IsSnapshot(payload)) return Corrupt("the payload is not a snapshot");
  const std::uint32_t kind = Number32At(payload, kKindAt);
  const std::uint32_t length = Number32At(payload, kTextAt);
  if (kind < 1 || kind > std::size(kKinds) || length > payload.size() - kTextAt - 4) {
    return Corrupt("the header of the snapshot is damaged");
  }
  SnapshotDescription description;
  description.kind = kKinds[kind - 1];
  description.begin = static_cast<std::int32_t>(Number32At(payload, kBeginAt));
  description.end = static_cast<std::int32_t>(Number32At(payload, kEndAt));
  description.fingerprint.assign(reinterpret_cast<const char*>(payload.data()) + kTextAt + 4,
                                 length);
  return description;
}

Result<std::size_t> SnapshotSize(std::span<const std::byte> payload) {
  if (!IsSnapshot(payload)) return Corrupt("the payload is not a snapshot");
  const std::uint64_t header = ReadLittleEndian(payload.subspan(kHeaderBytesAt, 8));
  const std::uint64_t bytes = ReadLittleEndian(payload.subspan(kPayloadBytesAt, 8));
  if (header > payload.size() || bytes > payload.size() - header) {
    return Corrupt("the snapshot has more bytes than the payload");
  }
  return static_cast<std::size_t>(header + bytes);
}

}  // namespace kvcache::store
