// Describes a model without making its weights ready (nothing is repacked or copied), and checks
// that its vocabulary fits.
//
// Thread safety: free functions without state.
#pragma once

#include "kvcache/status.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/tokenizer.h"

namespace kvcache {

// LoadModel's answer, and its errors: what this describes can be loaded.
Result<ModelInfo> DescribeModel(const GgufFile& file);

// Ok if the output has one row for each token, else kCorrupt with both numbers. llama.cpp has the
// same rule: it takes the number of rows from the vocabulary. The embedding may have more rows
// (mllama's has eight for images).
Status CheckTokenCount(const ModelInfo& info, const Tokenizer& tokenizer);

}  // namespace kvcache
