// The operating system's errors as Status.
#pragma once

#include <string>
#include <string_view>

#include "kvcache/status.h"

namespace kvcache {

// "cannot DOING PATH: No such file or directory" for errno value `error`: kNotFound for
// ENOENT, kIo else. Thread-safe.
Status OsError(std::string_view doing, const std::string& path, int error);

}  // namespace kvcache
