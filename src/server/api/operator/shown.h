// What the routes for operators and the page both show.
#pragma once

#include <span>

#include "server/route.h"

namespace kvcache::server::operate {

// Returns the requests that have not ended, those of the user or, for an administrator, all; no texts.
Json SequencesJson(const Scheduler& scheduler, const User& user);
// Returns why tokens of a prompt were not reused.
Json MissedJson(std::span<const PrefixMiss> missed);

}  // namespace kvcache::server::operate
