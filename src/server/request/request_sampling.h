// Reads the sampling parameters that the APIs share. All APIs have the same defaults: temperature 1,
// and nothing cut off. So a request with a seed has the same text by any route.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>

#include "kvcache_engine/sampling.h"
#include "server/request/fields.h"

namespace kvcache::server {

// Reads temperature, top_p, top_k, min_p, seed and the penalties. Without a seed it is random. Parameters of samplers
// that are not here are refused, unless their value changes nothing.
SamplingParams ReadSampling(Fields& fields, double max_temperature = 2.0);
std::uint64_t RandomSeed();

// Reads the most tokens of an answer; -1: no limit but the context's.
std::int32_t ReadMostTokens(Fields& fields, const char* name, std::int32_t fallback);

}  // namespace kvcache::server
