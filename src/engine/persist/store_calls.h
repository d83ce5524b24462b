// Calls functions that use a store, which must not throw into a request.
//
// Thread safety: a free function.
#pragma once

#include <exception>

#include "kvcache/status.h"

namespace kvcache {

// Returns what `function` returns, or kInternal with the text of its exception.
template <class Function>
Status WithoutExceptions(const Function& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    return {StatusCode::kInternal, error.what()};
  }
}

}  // namespace kvcache
