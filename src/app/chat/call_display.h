// Shows calls of tools and their results to a person, on standard error: dimmed on a terminal, and without characters
// that would control it.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>

#include "kvcache_engine/chat.h"

namespace kvcache::app {

enum class CallDetail : std::uint8_t {
  kShort,  // the beginning of long arguments
  kWhole,  // all of them, to decide about
};

void ShowCall(const ChatCall& call, CallDetail detail);

// Shows the first lines of a result.
void ShowResult(const std::string& text);

}  // namespace kvcache::app
