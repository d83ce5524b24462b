#include "model/load/model_digest.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/fnv.h"

namespace kvcache {

std::uint64_t ModelDigest(const GgufFile& file) {
  constexpr std::size_t kSample = 128;  // bytes from the middle and the end of a tensor
  Fnv1a digest;
  digest.Add(file.header());
  for (const GgufTensor& tensor : file.tensors()) {
    const std::size_t size = std::min(kSample, tensor.bytes.size());
    digest.Add(tensor.bytes.subspan((tensor.bytes.size() - size) / 2, size));
    digest.Add(tensor.bytes.last(size));
  }
  return digest.sum();
}

}  // namespace kvcache
