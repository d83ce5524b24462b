// Converts the weights of a GGUF file to another type (weight_scheme.h). The metadata stay.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "convert/weight_scheme.h"
#include "gguf/gguf.h"
#include "kvcache/status.h"

namespace kvcache {

// Writes `file` with matrices of `scheme` to `path`. `threads` 0: one per core; the file does not
// depend on it. Errors: kUnsupported: the file has matrices of another block type already; those of
// GgufWriter.
Status QuantizeModel(const GgufFile& file, const WeightScheme& scheme, const std::string& path,
                     int threads = 0);

}  // namespace kvcache
