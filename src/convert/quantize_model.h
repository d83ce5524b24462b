// Converts the weights of a GGUF file to another type.
//
// Matrices of f32, f16 and bf16 are converted. Norms, biases, routers of experts, convolutions and
// matrices whose rows are not whole blocks keep their type, as do the metadata.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "gguf/gguf.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

// Returns the weight type of a name such as "q8_0" or "Q8_0". Errors: kInvalidArgument: the known
// names.
Result<DType> ParseWeightType(std::string_view name);

// Writes `file` with matrices of `type` to `path`. Errors: kUnsupported: the file has matrices of
// another block type already; those of GgufWriter.
Status QuantizeModel(const GgufFile& file, DType type, const std::string& path);

}  // namespace kvcache
