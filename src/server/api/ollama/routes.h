// Ollama's generate and chat, and its routes about models.
#pragma once

#include <vector>

#include "server/route.h"

namespace kvcache::server {

std::vector<Route> OllamaRoutes();

}  // namespace kvcache::server
