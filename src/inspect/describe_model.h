// Describes a model without loading its weights: nothing is repacked or copied.
//
// Thread safety: free functions without state.
#pragma once

#include "gguf/gguf.h"
#include "kvcache/status.h"
#include "model/model.h"

namespace kvcache {

// Returns LoadModel's info. Errors: those of LoadModel; a model without error can be loaded.
Result<ModelInfo> DescribeModel(const GgufFile& file);

}  // namespace kvcache
