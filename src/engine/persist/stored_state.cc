#include "engine/persist/stored_state.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/little_endian.h"
#include "base/strings.h"
#include "store/snapshot_description.h"

namespace kvcache {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::string_view kLastStateMagic = "kvlast01";
constexpr std::size_t kPositionAt = 8;
constexpr std::size_t kValuesAt = 12;
constexpr std::size_t kLastStateHeader = 16;

// What follows the snapshot. The state's values are not aligned.
struct StoredLastState {
  Position position = 0;
  std::span<const std::byte> values;
};

Result<StoredLastState> ReadLastState(std::span<const std::byte> bytes) {
  if (bytes.size() < kLastStateHeader ||
      std::memcmp(bytes.data(), kLastStateMagic.data(), kLastStateMagic.size()) != 0) {
    return Corrupt(StrCat(bytes.size(), " bytes follow the snapshot, and they are no final state"));
  }
  const std::uint64_t count = ReadLittleEndian(bytes.subspan(kValuesAt, 4));
  const auto values = bytes.subspan(kLastStateHeader);
  if (count == 0 || values.size() != count * sizeof(float)) {
    return Corrupt(
        StrCat("a final state of ", count, " values has ", values.size(), " bytes of values"));
  }
  const auto position = static_cast<std::uint32_t>(ReadLittleEndian(bytes.subspan(kPositionAt, 4)));
  return StoredLastState{static_cast<Position>(position), values};
}

bool AreFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

Result<std::vector<float>> FiniteValues(std::span<const std::byte> bytes) {
  return Guarded("no memory for a final state", [&]() -> Result<std::vector<float>> {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    if (!AreFinite(values)) return Corrupt("a final state has a value that is not finite");
    return values;
  });
}

}  // namespace

Result<store::StoreBytes> WriteStoredState(Cache& cache, const Snapshot& snapshot,
                                           std::span<const float> last) {
  if (!AreFinite(last)) last = {};  // nobody would read it
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t exported, cache.snapshots()->ExportSize(snapshot));
  const auto size = static_cast<std::size_t>(exported);
  const std::size_t more = last.empty() ? 0 : kLastStateHeader + last.size_bytes();
  KVCACHE_ASSIGN_OR_RETURN(store::StoreBytes bytes, store::StoreBytes::Make(size + more));
  KVCACHE_RETURN_IF_ERROR(cache.snapshots()->Export(snapshot, bytes.span().first(size)));
  if (last.empty()) return bytes;
  const std::span<std::byte> end = bytes.span().subspan(size);
  std::memcpy(end.data(), kLastStateMagic.data(), kLastStateMagic.size());
  WriteLittleEndian(static_cast<std::uint64_t>(snapshot.end() - 1), end.subspan(kPositionAt, 4));
  WriteLittleEndian(last.size(), end.subspan(kValuesAt, 4));
  std::memcpy(end.data() + kLastStateHeader, last.data(), last.size_bytes());
  return bytes;
}

Result<StoredState> ReadStoredState(Cache& cache, std::span<const std::byte> payload,
                                    std::int64_t hidden_size) {
  KVCACHE_ASSIGN_OR_RETURN(const std::size_t size, store::SnapshotSize(payload));
  StoredState state;
  Position position = -1;
  if (size < payload.size()) {
    KVCACHE_ASSIGN_OR_RETURN(const StoredLastState read, ReadLastState(payload.subspan(size)));
    KVCACHE_ASSIGN_OR_RETURN(state.last, FiniteValues(read.values));
    position = read.position;
    const auto values = static_cast<std::int64_t>(state.last.size());
    if (hidden_size > 0 && values != hidden_size) {
      return Corrupt(
          StrCat("a final state has ", values, " values; those of the model have ", hidden_size));
    }
  }
  KVCACHE_ASSIGN_OR_RETURN(state.snapshot, cache.snapshots()->Import(payload.first(size)));
  if (!state.last.empty() && position != state.snapshot->end() - 1) {
    return Corrupt(StrCat("a final state is of position ", position, "; the snapshot ends at ",
                          state.snapshot->end()));
  }
  if (hidden_size == 0) state.last = {};
  return state;
}

}  // namespace kvcache
