// What answers are stamped with: names and times.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache::server {

// Returns a name that no other answer of this server has.
std::string NewId(std::string_view prefix);

std::int64_t UnixSeconds();
// Returns a time such as "2026-01-31T12:00:00Z".
std::string UtcTime(std::int64_t unix_seconds);

}  // namespace kvcache::server
