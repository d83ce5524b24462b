// The files of the page, which everyone may read.
#pragma once

#include <vector>

#include "server/route.h"

namespace kvcache::server {

std::vector<Route> PageFileRoutes();

}  // namespace kvcache::server
