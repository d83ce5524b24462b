// What a file says about embeddings, besides its architecture.
//
// Thread safety: pure.
#pragma once

#include <optional>

#include "gguf/gguf.h"
#include "kvcache/status.h"
#include "kvcache_engine/embedder.h"

namespace kvcache {

// Returns ARCHITECTURE.pooling_type; nothing if the file lacks it. Errors: kUnsupported, naming the key, for a
// value that is no pooling; kNotFound without general.architecture.
Result<std::optional<Pooling>> ReadPooling(const GgufFile& file);

// Returns the pooling of a file: `wanted` if there is one, else the file's. A file that states none or "none" has
// that of its kind. Errors: ReadPooling's.
Result<Pooling> ChoosePooling(const GgufFile& file, const std::optional<Pooling>& wanted);

}  // namespace kvcache
