#include "server/api/all_routes.h"

#include "server/api/anthropic/routes.h"
#include "server/api/llamacpp/routes.h"
#include "server/api/ollama/routes.h"
#include "server/api/openai/routes.h"
#include "server/api/operator/routes.h"
#include "server/api/page/routes.h"
#include "server/api/responses/routes.h"

namespace kvcache::server {

std::vector<Route> AllRoutes() {
  std::vector<Route> all;
  for (const auto& routes : {OpenAiRoutes(), ResponsesRoutes(), AnthropicRoutes(), OllamaRoutes(),
                             LlamaCppRoutes(), OperatorRoutes(), PageRoutes()}) {
    all.insert(all.end(), routes.begin(), routes.end());
  }
  return all;
}

}  // namespace kvcache::server
