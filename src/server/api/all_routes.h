// The routes of all APIs.
#pragma once

#include <vector>

#include "server/route.h"

namespace kvcache::server {

std::vector<Route> AllRoutes();

}  // namespace kvcache::server
