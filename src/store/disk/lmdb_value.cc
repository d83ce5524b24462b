#include "store/disk/lmdb_value.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace kvcache::store {
namespace {

struct RunHeader {  // MDB_page, of a run
  std::uint64_t page = 0;
  std::uint16_t pad = 0;
  std::uint16_t flags = kLmdbOverflow;
  std::uint32_t pages = 0;
};
static_assert(sizeof(RunHeader) == 16);

RunHeader HeaderOf(const LmdbValuePlace& place) {
  const std::int64_t pages = LmdbValuePages(place.value_bytes, place.key_bytes, place.page_bytes);
  return {.page = (place.at - sizeof(RunHeader)) / place.page_bytes,
          .pages = static_cast<std::uint32_t>(pages)};
}

template <class Call>
bool Whole(const Call& call) {
  ssize_t size = 0;
  do {
    size = call();
  } while (size < 0 && errno == EINTR);
  return size == static_cast<ssize_t>(sizeof(RunHeader));
}

}  // namespace

std::int64_t LmdbValuePages(std::size_t value_bytes, std::size_t key_bytes,
                            std::size_t page_bytes) {
  const std::size_t max_in_index = (((page_bytes - sizeof(RunHeader)) / 2) & ~std::size_t{1}) - 2;
  if (kLmdbNodeHeader + key_bytes + value_bytes <= max_in_index) return 0;
  return static_cast<std::int64_t>((sizeof(RunHeader) - 1 + value_bytes) / page_bytes + 1);
}

LmdbRun CheckLmdbRun(int fd, const LmdbValuePlace& place) {
  const RunHeader right = HeaderOf(place);
  if (right.pages == 0) return LmdbRun::kSound;
  if (place.at % place.page_bytes != sizeof(RunHeader)) return LmdbRun::kWrong;
  RunHeader header;
  const auto at = static_cast<off_t>(place.at - sizeof(header));
  if (!Whole([&] { return pread(fd, &header, sizeof(header), at); })) return LmdbRun::kUnreadable;
  const bool is_right =
      header.page == right.page && header.flags == right.flags && header.pages == right.pages;
  return is_right ? LmdbRun::kSound : LmdbRun::kWrong;
}

bool WriteLmdbRun(int fd, const LmdbValuePlace& place) {
  if (place.at % place.page_bytes != sizeof(RunHeader)) return false;
  const RunHeader right = HeaderOf(place);
  const auto at = static_cast<off_t>(place.at - sizeof(right));
  return Whole([&] { return pwrite(fd, &right, sizeof(right), at); });
}

}  // namespace kvcache::store
