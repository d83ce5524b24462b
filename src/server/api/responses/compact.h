// POST /v1/responses/compact: makes a long conversation short. The model writes a summary, which a client sends instead
// of the answers and calls.
#pragma once

#include "server/route.h"

namespace kvcache::server::responses {

void Compact(const RouteContext& context, const Json& body);

}  // namespace kvcache::server::responses
