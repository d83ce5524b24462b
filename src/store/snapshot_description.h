// What the header of an exported snapshot says (docs/snapshot-format.md), for people.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvcache/status.h"

namespace kvcache {

struct SnapshotDescription {
  std::string kind;
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::string fingerprint;  // the first line of the cache's
};

// Errors: kCorrupt for bytes that are not a snapshot.
Result<SnapshotDescription> DescribeSnapshot(std::span<const std::byte> payload);

}  // namespace kvcache
