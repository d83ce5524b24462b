// Gives any bytes to those who read what a store returns: the list of fingerprints, the lists of states,
// and a file of exported objects.
//
//   input   a byte that selects one of the three, then the bytes
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/persist/fingerprint_list.h"
#include "engine/persist/prefix_keys.h"
#include "engine/persist/state_index.h"
#include "fuzz_input.h"
#include "store/store_archive.h"

namespace kvcache {
namespace {

// Has these bytes under every key, and takes everything.
class SameStore final : public Store {
 public:
  explicit SameStore(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Status Get(const ObjectId& /*id*/, const Reader& reader) override { return reader(bytes_); }
  Status Put(const ObjectId& /*id*/, std::span<const std::byte> payload) override {
    put_ += payload.size();
    return Status::Ok();
  }
  Result<bool> Contains(const ObjectId& /*id*/) override { return true; }
  void Touch(std::span<const ObjectId> /*ids*/) override {}
  Status Remove(const ObjectId& /*id*/) override { return Status::Ok(); }
  Result<std::vector<StoredObject>> List() override { return std::vector<StoredObject>(); }
  Result<StoreStats> Usage() override { return StoreStats{}; }
  StoreTier tier() const override { return StoreTier::kMemory; }

  std::size_t put() const { return put_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t put_ = 0;
};

constexpr std::array<std::int32_t, 1100> kTokens{};

void FuzzFingerprints(SameStore& store) {
  const auto texts = ReadFingerprints(store);
  Check(texts.ok() && texts->size() <= 16);
  for (const std::string& text : *texts)
    (void)FingerprintDifference("kvcache states\nmodel a\n", text);
  (void)WhyMissed(store, "kvcache states\nmodel a\n", *texts, kTokens, 0);
  Check(AddFingerprint(store, "another").ok());
}

void FuzzStates(SameStore& store) {
  const PrefixKeys keys = *PrefixKeys::Make(StoreHash{});
  int calls = 0;
  const Status status =
      ForEachState(store, keys, kTokens, 0, 1, 1100, [&](const StoredPiece& state) -> Result<bool> {
        Check(state.end >= 1 && state.end <= 1100);
        return ++calls < 1000;
      });
  Check(status.ok() || !status.message().empty());
  const ObjectId list = *keys.ListId(StoreHash{});
  (void)ListState(store, list, StoredPiece{.end = 7}).ok();
}

void FuzzArchive(std::span<const std::byte> bytes) {
  static const int fd = memfd_create("archive", 0);
  Check(fd >= 0 && ftruncate(fd, 0) == 0);
  Check(pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  SameStore store({});
  const auto counts = store::ImportObjects(store, "/proc/self/fd/" + std::to_string(fd));
  Check(counts.ok() || !counts.status().message().empty());
  Check(store.put() <= bytes.size());
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvcache;
  auto bytes = std::as_bytes(std::span(data, size));
  const int kind = size > 0 ? data[0] % 3 : 0;
  if (size > 0) bytes = bytes.subspan(1);
  SameStore store(bytes);
  if (kind == 0) FuzzFingerprints(store);
  if (kind == 1) FuzzStates(store);
  if (kind == 2) FuzzArchive(bytes);
  return 0;
}
