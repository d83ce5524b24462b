#include "server/output/stamps.h"

#include <atomic>
#include <chrono>
#include <ctime>

#include "base/strings.h"

namespace kvcache::server {

std::int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string NewId(std::string_view prefix) {
  static std::atomic<std::uint64_t> count{0};
  return StrCat(prefix,
                HexText(static_cast<std::uint64_t>(UnixSeconds()) << 24 | (++count & 0xffffff)));
}

std::string UtcTime(std::int64_t unix_seconds) {
  const std::time_t time = unix_seconds;
  std::tm utc{};
  (void)gmtime_r(&time, &utc);
  char text[32];
  (void)std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace kvcache::server
