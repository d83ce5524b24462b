// Tells versions of a file apart by what the system says about it, without reading it.
//
// Thread safety: values.
#pragma once

#include <cstdint>

namespace kvcache {

// Two files with equal identities have the same contents, unless somebody set the clock back. All zeros:
// unknown.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;  // of the file or of its description; nobody can set it
};

}  // namespace kvcache
