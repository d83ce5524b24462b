#include "server/api/routes.h"

namespace kvcache::server {

std::vector<Route> AllRoutes() {
  std::vector<Route> all;
  for (const auto& routes :
       {openai::Routes(), responses::Routes(), anthropic::Routes(), ollama::Routes(),
        llamacpp::Routes(), rerank::Routes(), operate::Routes(), page::Routes()}) {
    all.insert(all.end(), routes.begin(), routes.end());
  }
  return all;
}

}  // namespace kvcache::server
