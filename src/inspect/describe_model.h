// Describes a model without making its weights ready (nothing is repacked or copied).
//
// Thread safety: free functions without state.
#pragma once

#include "gguf/gguf.h"
#include "kvcache/status.h"
#include "model/model.h"

namespace kvcache {

// LoadModel's answer, and its errors: what this describes can be loaded.
Result<ModelInfo> DescribeModel(const GgufFile& file);

}  // namespace kvcache
