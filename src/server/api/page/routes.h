// The page that shows the cache: its files, and what it reads.
#pragma once

#include <vector>

#include "server/route.h"

namespace kvcache::server {

std::vector<Route> PageRoutes();

}  // namespace kvcache::server
