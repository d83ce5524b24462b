// A number that tells models apart: files whose caches must not be mixed up.
//
// It covers all of the file's header (metadata, names, shapes and types of the tensors), and a few
// bytes of each tensor, so that no weights need to be read for it. Fine-tunes of a model differ in
// both. It is not a proof that two files are equal.
//
// Thread safety: pure.
#pragma once

#include <cstdint>

#include "gguf/gguf.h"

namespace kvcache {

std::uint64_t ModelDigest(const GgufFile& file);

}  // namespace kvcache
