#include "model/load/model_digest.h"

#include <algorithm>
#include <cstddef>

#include "base/fnv.h"

namespace kvcache {

std::uint64_t ModelDigest(const GgufFile& file) {
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
