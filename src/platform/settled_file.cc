#include "platform/settled_file.h"

#include <cstdint>

#include "platform/wall_clock.h"

namespace kvcache {
namespace {

// A file that changed within this time of now may change again without a new time.
constexpr std::int64_t kRacyNs = 2'000'000'000;

}  // namespace

bool IsSettled(const FileIdentity& identity) {
  const std::int64_t now = WallClockNs();
  return identity.inode != 0 && identity.changed_ns < now - kRacyNs &&
         identity.modified_ns < now - kRacyNs;
}

}  // namespace kvcache
