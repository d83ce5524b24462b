// Reads the sampling parameters that the APIs share. All APIs have the same defaults: temperature 1,
// and nothing cut off. So a request with a seed has the same text by any route.
//
// Thread safety: free functions.
#pragma once

#include "kvcache_engine/sampling.h"
#include "server/fields.h"

namespace kvcache::server {

// Reads temperature, top_p, top_k, min_p, seed and the penalties; `least_penalty` is their least
// value. Without a seed it is random.
SamplingParams ReadSampling(Fields& fields, double least_penalty = -2.0, double hottest = 2.0);

}  // namespace kvcache::server
