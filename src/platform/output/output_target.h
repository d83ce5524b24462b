// Resolves the path that a program writes to.
//
// Thread safety: free functions.
#pragma once

#include <sys/types.h>

#include <string>

#include "kvcache/status.h"

namespace kvcache {

// A path, and what is there now.
struct OutputTarget {
  // The path of a regular file or of nothing, after its symbolic links are followed (a link may
  // point to nothing). The path of a device or pipe as it was given.
  std::string path;
  bool exists = false;   // something has that name
  bool regular = false;  // it is a regular file
  mode_t mode = 0;       // its permission bits
  uid_t owner = 0;
  gid_t group = 0;
};

// Errors name `path`: it is a directory; the file is there and may not be written; links that
// form a circle; the operating system's reason.
Result<OutputTarget> ResolveOutput(const std::string& path);

}  // namespace kvcache
