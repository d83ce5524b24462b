// Finds the route of a request.
//
// Thread safety: const functions from any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/route.h"

namespace kvcache::server {

struct RouteMatch {
  const Route* route = nullptr;  // null: the path has no route of this method
  std::string
      allowed{};  // the methods of the path, such as "GET, HEAD"; empty: there is no such path
  std::string parameter{};               // what the path has for {…}
  Audience audience = Audience::kUsers;  // of the path
};

class Router {
 public:
  explicit Router(std::vector<Route> routes) : routes_(std::move(routes)) {}

  // Returns the route of a method and a path. A path that a route has without {…} comes before the others.
  RouteMatch Find(std::string_view method, std::string_view path) const;

 private:
  std::vector<Route> routes_;
};

// Returns whether requests of the method only read: they are no entries of the log.
bool IsRead(std::string_view method);

// Answers with status 404 or 405. REQUIRES: match.route is null.
void SendNoRoute(const RouteMatch& match, const ServerContext& context, std::string_view method);

}  // namespace kvcache::server
