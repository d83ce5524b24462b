// Whether pages of other origins may read answers (CORS), and what a browser is told before it sends a request.
//
// Source: the Fetch standard, "CORS protocol".
// Thread safety: free functions.
#pragma once

#include <string>
#include <vector>

#include "server/http/http_server.h"

namespace kvcache::server {

// Returns whether pages of `origin` may read answers. `allowed`: HttpOptions::allowed_origins.
bool AllowsOrigin(const std::vector<std::string>& allowed, const std::string& origin);

// Returns whether a request asks what a page of an allowed origin may send.
bool IsPreflight(const HttpRequest& request, const std::vector<std::string>& allowed);

// Answers it. REQUIRES: IsPreflight.
void SendPreflight(const HttpRequest& request, HttpReply& reply);

}  // namespace kvcache::server
