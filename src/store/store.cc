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

Result<StoreStats> Store::Stats() {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoredObject> all, List());
  KVCACHE_ASSIGN_OR_RETURN(StoreStats stats, Usage());
  stats.objects = std::ssize(all);
  stats.payload_bytes = 0;
  for (const StoredObject& object : all) stats.payload_bytes += object.payload_bytes;
  return stats;
}

}  // namespace kvcache
