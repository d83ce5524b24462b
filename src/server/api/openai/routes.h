// OpenAI's chat completions, completions and models.
#pragma once

#include <vector>

#include "server/route.h"

namespace kvcache::server {

std::vector<Route> OpenAiRoutes();

}  // namespace kvcache::server
