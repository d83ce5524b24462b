// llama.cpp's own routes: completions, infill and properties.
#pragma once

#include <vector>

#include "server/route.h"

namespace kvcache::server {

std::vector<Route> LlamaCppRoutes();

}  // namespace kvcache::server
