// OpenAI's responses: made, stored and made short.
#pragma once

#include <vector>

#include "server/route.h"

namespace kvcache::server {

std::vector<Route> ResponsesRoutes();

}  // namespace kvcache::server
