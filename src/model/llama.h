// The llama architecture: pre-norm decoder with RoPE, grouped-query attention and SwiGLU.
// Llama 1 to 3, Mistral and TinyLlama files carry this name in general.architecture.
//
// Source: Touvron et al., "LLaMA" (2023); tensor and key names as in the GGUF specification.
#pragma once

#include <memory>

#include "model/model.h"

namespace kvcache {

Result<std::unique_ptr<Model>> LoadLlama(const GgufFile& file, Backend& backend);

}  // namespace kvcache
