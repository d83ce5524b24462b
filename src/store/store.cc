// What all stores have in common.
#include "kvcache/store.h"

namespace kvcache {

std::string_view StoreTierName(StoreTier tier) {
  switch (tier) {
    case StoreTier::kMemory: return "memory";
    case StoreTier::kDisk: return "disk";
    case StoreTier::kRemote: return "remote";
  }
  return "unknown";
}

Status Store::GetEach(std::span<const ObjectId> ids, const EachReader& reader) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(Get(
        ids[i], [&](std::span<const std::byte> payload) { return reader(i, payload, tier()); }));
  }
  return Status::Ok();
}

}  // namespace kvcache
