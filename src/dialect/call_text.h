// Writes calls as a model writes them, for templates that leave the calls of earlier turns out.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "dialect/dialect.h"

namespace kvcache {

// Returns the text of `calls`, which is the list `tool_calls` of a message with arguments that are objects. Empty: the
// form is neither of objects nor of Python, or a call has no name.
std::string CallText(const CallSyntax& syntax, const nlohmann::ordered_json& calls);

}  // namespace kvcache
