// What a model would be, without its weights made ready: nothing is repacked or copied.
//
// Thread safety: a free function without state.
#pragma once

#include "kvcache/status.h"
#include "model/gguf.h"
#include "model/model.h"

namespace kvcache {

// LoadModel's answer, and its errors: what this describes can be loaded.
Result<ModelInfo> DescribeModel(const GgufFile& file);

}  // namespace kvcache
