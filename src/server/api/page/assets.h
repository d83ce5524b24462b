// The files of the page, which everyone may read.
#pragma once

#include <vector>

#include "server/route.h"

namespace kvcache::server::page {

std::vector<Route> FileRoutes();

}  // namespace kvcache::server::page
