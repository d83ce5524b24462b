// Routes for those who run the server: health, metrics, tokens, templates, reuse and sequences.
#pragma once

#include <vector>

#include "server/route.h"

namespace kvcache::server {

std::vector<Route> OperatorRoutes();

// Returns the requests that have not ended, those of the user or, for an administrator, all; no texts.
Json SequencesJson(const Scheduler& scheduler, const User& user);

}  // namespace kvcache::server
