// Routes of stored responses: the response itself, its events, its input, its end.
#pragma once

#include "server/route.h"

namespace kvcache::server::responses {

// Each answers for the response that the path names.
void GetResponse(const ServerContext& context);
void GetResponseItems(const ServerContext& context);
void DeleteResponse(const ServerContext& context);
void CancelResponse(const ServerContext& context);

}  // namespace kvcache::server::responses
