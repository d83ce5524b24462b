#include "model_store/blob_digest.h"

#include <algorithm>

namespace kvcache {
namespace {

constexpr std::string_view kPrefix = "sha256:";

}  // namespace

std::string BlobDigest(const Sha256Hash& hash) {
  return std::string(kPrefix) + HexText(hash);
}

bool IsBlobDigest(std::string_view text) {
  if (!text.starts_with(kPrefix)) return false;
  text.remove_prefix(kPrefix.size());
  return text.size() == 2 * sizeof(Sha256Hash) && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace kvcache
