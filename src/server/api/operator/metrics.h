// GET /metrics: the counters of all models in Prometheus' format.
#pragma once

#include "server/route.h"

namespace kvcache::server {

void Metrics(const ServerContext& context, const Reply& reply);

}  // namespace kvcache::server
