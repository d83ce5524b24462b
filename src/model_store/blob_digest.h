// The digests that name the blobs of the model store: "sha256:" and 64 lower-case hexadecimal digits.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/sha256.h"

namespace kvcache {

std::string BlobDigest(const Sha256Hash& hash);
bool IsBlobDigest(std::string_view text);

}  // namespace kvcache
