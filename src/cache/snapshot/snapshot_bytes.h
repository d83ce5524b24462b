// The header of exported snapshots (docs/snapshot-format.md): writing, and reading foreign bytes.
//
// Thread safety: free functions over their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "cache/pass/cache_storage.h"
#include "kvcache/kv.h"
#include "kvcache/status.h"
#include "kvcache/visibility.h"

namespace kvcache {

enum class SnapshotKind : std::uint32_t { kCausal = 1, kEncoder = 2, kWrapper = 3, kRecurrent = 4 };

// What a header says.
struct SnapshotHeader {
  SnapshotKind kind = SnapshotKind::kCausal;
  Position begin = 0;
  Position end = 0;
  std::string fingerprint;            // its first line
  std::vector<std::int64_t> numbers;  // of the kind
  std::vector<PositionRange> ranges;  // positions with keys and values, ascending
  std::vector<LayerKv> layers;        // shape and types; without kv_heads: no bytes
  std::vector<std::int64_t> parts;    // sizes of inner snapshots; 0: none
  std::int64_t payload = 0;           // bytes after the header
};

// The error of foreign bytes.
inline Status CorruptBytes(const std::string& what) {
  return Corrupt("snapshot bytes: " + what);
}

// Headers and payloads begin at multiples of this.
inline constexpr std::int64_t kSnapshotAlignment = 64;
// Limits that no cache reaches; they bound what a header can make a reader allocate.
inline constexpr std::size_t kMaxRanges = 1 << 20;
inline constexpr std::size_t kMaxParts = 64;

// Returns the bytes of the header, a multiple of kSnapshotAlignment.
std::vector<std::byte> WriteHeader(const SnapshotHeader& header);

// A header, and its size.
struct ReadSnapshotHeader {
  SnapshotHeader header;
  std::int64_t size = 0;
};
// Errors: kCorrupt, naming what is wrong. REQUIRES nothing of the bytes.
Result<ReadSnapshotHeader> ReadHeader(std::span<const std::byte> bytes);

// Returns kInvalidArgument unless kind and fingerprint are these.
Status CheckOrigin(const SnapshotHeader& header, SnapshotKind kind, const std::string& fingerprint);

// Returns the fingerprint of a cache of this kind, whose layers `storage` has.
std::string IdentityText(std::string_view kind, const CacheStorage& storage,
                         std::string_view keys_identity);
// Returns the size of an export with this header.
std::int64_t ExportedSize(const SnapshotHeader& header);
// Writes the header to `bytes`. Returns the rest, of which the caller must write every byte: equal
// snapshots have equal bytes. Errors: kInvalidArgument if the size is wrong.
Result<std::span<std::byte>> BeginExport(const SnapshotHeader& header, std::span<std::byte> bytes);
// Returns kInvalidArgument if a layer's types differ from the cache's, or its shape from that of a
// layer which has memory; kUnsupported for a shape that the types cannot hold.
Status CheckLayers(std::span<const LayerKv> layers, const CacheStorage& storage);
// Returns kCorrupt unless the payload has the size of all layers with that many cells.
Status CheckPayload(const SnapshotHeader& header, std::int64_t cells);

}  // namespace kvcache
