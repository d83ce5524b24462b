#include "server/http/cors.h"

#include <algorithm>
#include <utility>

namespace kvcache::server {

bool AllowsOrigin(const std::vector<std::string>& allowed, const std::string& origin) {
  return !origin.empty() && std::any_of(allowed.begin(), allowed.end(), [&](const auto& one) {
    return one == "*" || one == origin;
  });
}

bool IsPreflight(const HttpRequest& request, const std::vector<std::string>& allowed) {
  return request.method == "OPTIONS" && AllowsOrigin(allowed, request.origin);
}

void SendPreflight(const HttpRequest& request, HttpReply& reply) {
  // Other bytes could end the header line of the answer.
  const bool plain = std::all_of(request.asked_headers.begin(), request.asked_headers.end(),
                                 [](char c) { return c >= ' ' && c <= '~'; });
  HttpHeaders headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                         {"Access-Control-Max-Age", "86400"}};
  if (plain && !request.asked_headers.empty()) {
    headers.emplace_back("Access-Control-Allow-Headers", request.asked_headers);
  }
  reply.Send(204, "", std::move(headers));
}

}  // namespace kvcache::server
