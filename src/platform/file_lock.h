// Locks of files and folders (flock) that a caller can stop waiting for.
//
// Thread safety: free functions.
#pragma once

#include <functional>
#include <string>

#include "kvcache/status.h"

namespace kvcache {

// Waits until the open file has its exclusive lock. `path` is for messages. `cancelled`, which is asked ten times a second,
// ends waiting with kCancelled; empty: never. Errors: kIo.
Status WaitForFileLock(int fd, const std::string& path, const std::function<bool()>& cancelled);

// Returns whether the file of that name, or what a link of that name leads to, is the one that is open.
bool IsFileOf(const std::string& path, int fd);

}  // namespace kvcache
