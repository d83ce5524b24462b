// Reads conversations out of requests.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "kvcache/status.h"
#include "server/request/fields.h"

namespace kvcache::server {

// Returns the messages for the template: texts of parts are joined, `developer` is `system`, arguments of
// calls are objects.
Result<Json> ReadMessages(const Json& messages);
// Returns a content as one text. Errors: a part that is not a text.
Result<std::string> ContentText(const Json& content);

}  // namespace kvcache::server
