// GET /metrics: the counters of all models in Prometheus' format.
#pragma once

#include "server/route.h"

namespace kvcache::server::operate {

void Metrics(const ServerContext& context);

}  // namespace kvcache::server::operate
