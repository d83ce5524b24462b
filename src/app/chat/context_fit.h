// Refuses texts that cannot fit into a context, before anything is computed for them.
//
// Thread safety: free functions.
#pragma once

#include <string_view>

#include "kvcache_engine/engine.h"

namespace kvcache::app {

// kInvalidArgument, "has N bytes; …", if `text` has more bytes than the engine's context can hold:
// as many tokens as the context has, each of the vocabulary's longest text. White space around the
// text is not counted, as a template may trim it. Always Ok for a model with an encoder: its
// tokenizer shortens white space.
Status CheckBytesFit(const Engine& engine, std::string_view text);

}  // namespace kvcache::app
