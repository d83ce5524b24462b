// Anthropic's messages.
#pragma once

#include <vector>

#include "server/route.h"

namespace kvcache::server {

std::vector<Route> AnthropicRoutes();

}  // namespace kvcache::server
