// Calls of tools that come back in a conversation: clients leave out what templates need.
//
// Thread safety: free functions.
#pragma once

#include "server/request/fields.h"

namespace kvcache::server {

// Returns the arguments of a call as templates read them: an object also from null, from the text of an object, and
// from one that a limit cut off. Any other text stays.
Json CallArguments(Json arguments);

// Gives calls without an id one, and results of tools the id and the name of their call. A result without an id is of
// the first call of its name, or of any name, that has no result yet. REQUIRES: messages for templates.
void CompleteCalls(Json& messages);

}  // namespace kvcache::server
