// The special tokens around a text and between two texts, from the post_processor of a tokenizer.json.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "kvcache/status.h"

namespace kvcache {

struct HfTextEnds {
  std::string begin, end;           // of a text; empty: none
  std::optional<int> between = {};  // tokens between two texts, all `end`; none: it is not said
};

// Returns what the post-processor adds; nothing without one. Errors: kUnsupported: more than one token at an end, or a kind of
// post-processor that is not known.
Result<std::optional<HfTextEnds>> ReadHfTextEnds(const nlohmann::json& tokenizer);

}  // namespace kvcache
