// What the header of an exported snapshot says (docs/snapshot-format.md), for people.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvcache/status.h"

namespace kvcache::store {

struct SnapshotDescription {
  std::string kind;
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::string fingerprint;  // the first line of the cache's
};

// Errors: kCorrupt for bytes that do not begin with a snapshot.
Result<SnapshotDescription> DescribeSnapshot(std::span<const std::byte> payload);

// Returns the bytes of the snapshot that the payload begins with, as its header says. Errors: kCorrupt for a
// payload that does not begin with one, or has fewer bytes.
Result<std::size_t> SnapshotSize(std::span<const std::byte> payload);

}  // namespace kvcache::store
