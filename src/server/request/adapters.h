// Which adapters a request has.
//
// Thread safety: free functions.
#pragma once

#include <vector>

#include "kvcache/status.h"
#include "server/models/model_service.h"
#include "server/models/model_source.h"

namespace kvcache::server {

// Reads llama.cpp's list of adapters, [{"id": 0, "scale": 0.5}, …]: those that it does not name have a scale of 0.
// Returns a scale for each of the `count` adapters of the model. Errors: kInvalidArgument; the message names `field`.
Result<std::vector<float>> ReadAdapterScales(std::size_t count, const Json& list,
                                             const char* field);

// Returns what a request for `model` has: what its "lora" says; else the adapter that the model's name means; else the
// scales of the service. Errors: those of ReadAdapterScales.
Result<std::vector<AdapterUse>> AdaptersOf(const ModelService& service, const ServedModel& model,
                                           const Json& body);

}  // namespace kvcache::server
