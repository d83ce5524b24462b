#include "platform/address_space.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace kvcache {

std::optional<std::int64_t> AddressSpaceLeft() {
  rlimit limit{};
  constexpr rlim_t kMax = rlim_t{1} << 62;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur > kMax) return std::nullopt;
  std::ifstream statm("/proc/self/statm");
  std::int64_t pages = 0;
  statm >> pages;
  const std::int64_t used = pages * sysconf(_SC_PAGESIZE);
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(limit.rlim_cur) - used);
}

}  // namespace kvcache
