// Routes of stored responses: the response itself, its events, its input, its end.
#pragma once

#include "server/route.h"

namespace kvcache::server {

// Each answers for the response that the path names.
void GetResponse(const ServerContext& context, const Reply& reply);
void GetResponseItems(const ServerContext& context, const Reply& reply);
void DeleteResponse(const ServerContext& context, const Reply& reply);
void CancelResponse(const ServerContext& context, const Reply& reply);

}  // namespace kvcache::server
