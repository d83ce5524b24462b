// Ollama's embeddings: /api/embed, and the older /api/embeddings.
#pragma once

#include "server/route.h"

namespace kvcache::server::ollama {

void Embed(const EmbeddingContext& context, const Json& body);
void EmbedOne(const EmbeddingContext& context, const Json& body);

// As WithEmbedder::only_loads: a request without an input and with a keep_alive of 0 lets its model go.
bool LetsEmbedderGo(const ServerContext& context, const ServedModel& model, const Json& body);

}  // namespace kvcache::server::ollama
