#include "model/load/model_digest.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "base/fnv.h"

namespace kvcache {
namespace {

using IdentityKey =
    std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::int64_t, std::int64_t>;

IdentityKey KeyOf(const FileIdentity& identity) {
  return {identity.device, identity.inode, identity.bytes, identity.modified_ns,
          identity.changed_ns};
}

class DigestsOfFiles {
 public:
  std::optional<std::uint64_t> Find(const IdentityKey& key) {
    const std::lock_guard lock(mutex_);
    const auto found = digests_.find(key);
    return found == digests_.end() ? std::nullopt : std::optional(found->second);
  }
  void Add(const IdentityKey& key, std::uint64_t digest) {
    const std::lock_guard lock(mutex_);
    digests_[key] = digest;
  }

 private:
  std::mutex mutex_;
  std::map<IdentityKey, std::uint64_t> digests_;
};

DigestsOfFiles& RememberedDigests() {
  static DigestsOfFiles digests;
  return digests;
}

}  // namespace

void RememberModelDigest(const FileIdentity& identity, std::uint64_t digest) {
  RememberedDigests().Add(KeyOf(identity), digest);
}

std::uint64_t ModelDigest(const GgufFile& file) {
  if (const auto known = RememberedDigests().Find(KeyOf(file.identity()))) return *known;
  constexpr std::size_t kSamples = 16;  // of each tensor, evenly spaced, the end among them
  constexpr std::size_t kSample = 256;  // bytes
  Fnv1a digest;
  for (const GgufPart& part : file.parts()) digest.Add(part.header());
  for (const GgufTensor& tensor : file.tensors()) {
    const std::size_t size = std::min(kSample, tensor.bytes.size());
    const std::size_t step = (tensor.bytes.size() - size) / kSamples;
    for (std::size_t i = 1; i < kSamples; ++i) digest.Add(tensor.bytes.subspan(i * step, size));
    digest.Add(tensor.bytes.last(size));
  }
  return digest.sum();
}

}  // namespace kvcache
