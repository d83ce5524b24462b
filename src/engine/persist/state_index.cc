#include "engine/persist/state_index.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/little_endian.h"

namespace kvcache {
namespace {

constexpr std::string_view kStateIndexMagic = "kvidx001";
constexpr std::size_t kMaxIndexed = 64;
constexpr std::size_t kEntryBytes = 36;

struct Listed {
  Position length = 0;
  StoreHash key;
  friend bool operator==(const Listed&, const Listed&) = default;
};

Status AddListed(std::span<const std::byte> payload, std::vector<Listed>& all) {
  const bool is_list =
      payload.size() >= kStateIndexMagic.size() &&
      std::memcmp(payload.data(), kStateIndexMagic.data(), kStateIndexMagic.size()) == 0 &&
      (payload.size() - kStateIndexMagic.size()) % kEntryBytes == 0;
  if (!is_list) return Corrupt("a list of states is damaged");
  payload = payload.subspan(kStateIndexMagic.size());
  for (; !payload.empty(); payload = payload.subspan(kEntryBytes)) {
    Listed listed;
    listed.length = static_cast<Position>(ReadLittleEndian(payload.first(4)));
    std::memcpy(listed.key.bytes.data(), payload.data() + 4, listed.key.bytes.size());
    if (std::find(all.begin(), all.end(), listed) == all.end()) all.push_back(listed);
  }
  return Status::Ok();
}

// Adds what a list has. Stores of several tiers may have different lists. Returns Ok if there is none.
Status ReadList(Store& store, const ObjectId& list, std::vector<Listed>& all) {
  Status status = store.GetCopies(
      list, [&](std::span<const std::byte> payload) { return AddListed(payload, all); });
  return status.code() == StatusCode::kNotFound ? Status::Ok() : status;
}

}  // namespace

Status ForEachState(Store& store, const PrefixKeys& keys, std::span<const std::int32_t> tokens,
                    std::uint64_t salt, Position min, Position max, const StateFunction& function) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoreHash> chain, keys.Chain(tokens, salt));
  Status first;
  for (Position chunk = max / PrefixKeys::kChunk; chunk >= min / PrefixKeys::kChunk; --chunk) {
    KVCACHE_ASSIGN_OR_RETURN(const ObjectId list,
                             keys.ListId(chain[static_cast<std::size_t>(chunk)]));
    std::vector<Listed> all;
    Status status = ReadList(store, list, all);
    if (status.code() == StatusCode::kIo && all.empty()) return status;  // so are the other lists
    if (first.ok()) first = std::move(status);
    std::stable_sort(all.begin(), all.end(),
                     [](const Listed& a, const Listed& b) { return a.length > b.length; });
    for (const Listed& listed : all) {
      const bool is_here = listed.length >= min && listed.length <= max &&
                           listed.length / PrefixKeys::kChunk == chunk;
      if (!is_here) continue;
      const auto prefix = tokens.first(static_cast<std::size_t>(listed.length));
      KVCACHE_ASSIGN_OR_RETURN(const ObjectId id, keys.StateId(chain, prefix));
      if (id.key != listed.key) continue;  // of another prompt
      KVCACHE_ASSIGN_OR_RETURN(const bool continues, function({id, 0, listed.length}));
      if (!continues) return Status::Ok();
    }
  }
  return first;
}

Status ListState(Store& store, const ObjectId& list, const StoredPiece& state) {
  std::vector<Listed> all;
  Status status = ReadList(store, list, all);
  if (status.code() == StatusCode::kIo && all.empty()) return status;
  const Listed added{state.end, state.id.key};
  if (std::find(all.begin(), all.end(), added) != all.end()) return Status::Ok();
  all.insert(all.begin(), added);
  if (all.size() > kMaxIndexed) all.resize(kMaxIndexed);
  std::vector<std::byte> payload;
  for (const char letter : kStateIndexMagic) payload.push_back(static_cast<std::byte>(letter));
  for (const Listed& listed : all) {
    AppendLittleEndian(static_cast<std::uint32_t>(listed.length), 4, payload);
    payload.insert(payload.end(), listed.key.bytes.begin(), listed.key.bytes.end());
  }
  return store.Put(list, payload);
}

}  // namespace kvcache
