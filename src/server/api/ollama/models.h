// Ollama's routes about models: what there is, what is loaded, and changes of the list.
#pragma once

#include <cstdint>
#include <optional>

#include "server/route.h"

namespace kvcache::server::ollama {

void ShowVersion(const ServerContext& context);
void ListModels(const ServerContext& context);
void ListLoaded(const ServerContext& context);
void ShowModel(const RouteContext& context, const Json& body);
// As WithModel::without_text.
void ShowEmbedder(const ServerContext& context, const ServedModel& model);

void CreateModel(const ServerContext& context, const Json& body);
void CopyModel(const ServerContext& context, const Json& body);
void PullModel(const ServerContext& context, const Json& body);
void DeleteModel(const ServerContext& context, const Json& body);

// What a request that generates gives: /api/chat messages, /api/generate a prompt.
enum class Kind : std::uint8_t { kChat, kText };

// As WithModel::only_loads.
template <Kind kKind>
bool OnlyLoads(const ServerContext& context, const ServedModel& model, const Json& body);

// As WithModel::stay_seconds: reads "keep_alive".
Result<std::optional<double>> ReadKeepAlive(const Json& body);

}  // namespace kvcache::server::ollama
