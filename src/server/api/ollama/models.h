// Ollama's routes about models: what there is, what is loaded, and changes of the list.
#pragma once

#include <optional>

#include "server/route.h"

namespace kvcache::server {

void OllamaVersion(const ServerContext& context, const Reply& reply);
void OllamaTags(const ServerContext& context, const Reply& reply);
void OllamaRunning(const ServerContext& context, const Reply& reply);
void OllamaShow(const RouteContext& context, const Json& body, const Reply& reply);

void OllamaCreate(const ServerContext& context, const Json& body, const Reply& reply);
void OllamaCopy(const ServerContext& context, const Json& body, const Reply& reply);
void OllamaDelete(const ServerContext& context, const Json& body, const Reply& reply);

// As WithModel::only_loads, for /api/chat and /api/generate.
bool ChatOnlyLoads(const ServerContext& context, const ServedModel& model, const Json& body,
                   const Reply& reply);
bool GenerateOnlyLoads(const ServerContext& context, const ServedModel& model, const Json& body,
                       const Reply& reply);

// As WithModel::stay_seconds: reads "keep_alive".
Result<std::optional<double>> ReadKeepAlive(const Json& body);

}  // namespace kvcache::server
