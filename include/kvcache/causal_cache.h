// Keys and values by position, every token kept: full attention, any number of sequences.
//
// Design: docs/design/cells.md.
#pragma once

#include <memory>

#include "kvcache/cache.h"

namespace kvcache {

struct CausalOptions {
  ShiftKeysFn shift_keys{};  // empty: a middle range cannot be removed
};

std::unique_ptr<Cache> MakeCausalCache(CausalOptions options = {});

}  // namespace kvcache
