// Recognises the pre-tokenizer of a tokenizer.json by its expressions.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kvcache/status.h"

namespace kvcache {

// Returns the name for tokenizer.ggml.pre. `pre_tokenizer` is the object of that name, of a
// byte-level vocabulary. `ignore_merges`: a word that is a token is not divided. Errors:
// kUnsupported, with the expressions that are not known.
Result<std::string> FindHfPreTokenizer(const nlohmann::json& pre_tokenizer, bool ignore_merges);

}  // namespace kvcache
