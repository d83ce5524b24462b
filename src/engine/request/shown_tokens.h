// Generates a text in which some control tokens are shown.
//
// Thread safety: as Generate.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache_engine/generate.h"

namespace kvcache {

// Control tokens whose text is part of an answer's text, between two bytes that no other text has.
struct ShownTokens {
  std::vector<std::int32_t> tokens{};  // sorted
  char edge = 0;
};

// As Generate.
Result<GenerateResult> GenerateShown(Scheduler& scheduler, const GenerateRequest& request,
                                     const ShownTokens& shown);

}  // namespace kvcache
