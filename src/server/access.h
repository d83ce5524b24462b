// Who may ask what: names of this machine, API keys, and changes of the list of models.
//
// Thread safety: const functions from any thread.
#pragma once

#include <optional>

#include "server/api/errors.h"
#include "server/api_keys.h"
#include "server/http/http_server.h"
#include "server/route.h"

namespace kvcache::server {

class Access {
 public:
  // Without keys, everyone who reaches the server is the same administrator.
  Access(const HttpOptions& http, std::optional<ApiKeys> keys);

  // Returns why the request is refused, whoever sends it: a server on loopback answers only to names of loopback,
  // which a page of another site cannot have.
  std::optional<ApiError> CheckHost(const HttpRequest& request) const;

  // Sets who asks for a path with that audience. Returns why the user may not.
  std::optional<ApiError> Identify(const HttpRequest& request, Audience audience, User* user) const;

  // Returns why the request may not change the list of models. With keys, administrators may; without, whoever is on
  // this machine may, but no page of another site that a browser here shows.
  std::optional<ApiError> CheckChange(const HttpRequest& request, const User& user) const;

 private:
  bool MayChange(const HttpRequest& request, const User& user) const;

  std::optional<ApiKeys> keys_;
  bool only_loopback_;
  bool has_tls_;
  std::vector<std::string> allowed_origins_;
};

}  // namespace kvcache::server
