#include "server/router.h"

#include <optional>

#include "base/strings.h"

namespace kvcache::server {
namespace {

bool HasParameter(const Route& route) {
  return route.path.find('{') != route.path.npos;
}

// Returns what `path` has for the braces of `pattern`, or nothing if it is another path. REQUIRES: it has braces.
std::optional<std::string_view> Match(std::string_view pattern, std::string_view path) {
  const std::size_t open = pattern.find('{');
  const std::size_t close = pattern.find('}', open);
  const std::string_view name = pattern.substr(open, close - open);
  const std::string_view end = pattern.substr(close + 1);
  if (!path.starts_with(pattern.substr(0, open))) return std::nullopt;
  path.remove_prefix(open);
  if (name.ends_with("...")) return path;
  const std::string_view part = path.substr(0, path.find('/'));
  const bool fits = !part.empty() && path.substr(part.size()) == end;
  return fits ? std::optional(part) : std::nullopt;
}

bool Answers(std::string_view of_route, std::string_view method) {
  return of_route == method || (of_route == "GET" && method == "HEAD");
}

// Adds a route of the path that was asked for.
void Add(const Route& route, std::string_view method, RouteMatch& match) {
  if (!match.allowed.empty()) match.allowed += ", ";
  match.allowed += route.method == "GET" ? "GET, HEAD" : route.method;
  match.audience = route.audience;
  if (Answers(route.method, method)) match.route = &route;
}

}  // namespace

RouteMatch Router::Find(std::string_view method, std::string_view path) const {
  RouteMatch match;
  for (const Route& route : routes_) {
    if (!HasParameter(route) && route.path == path) Add(route, method, match);
  }
  if (!match.allowed.empty()) return match;
  for (const Route& route : routes_) {
    const auto parameter = HasParameter(route) ? Match(route.path, path) : std::nullopt;
    if (!parameter) continue;
    match.parameter = std::string(*parameter);
    Add(route, method, match);
  }
  return match;
}

bool IsRead(std::string_view method) {
  return method == "GET" || method == "HEAD";
}

void SendNoRoute(const RouteMatch& match, const ServerContext& context, std::string_view method) {
  if (match.allowed.empty()) {
    return context.Refuse(
        {.status = 404, .message = StrCat("there is no route ", Quoted(context.path))});
  }
  const ApiError error{.status = 405, .message = StrCat(Quoted(method), " is not allowed here")};
  context.reply->Send(405, Dump(ErrorJson(context.api, error)), {{"Allow", match.allowed}});
}

}  // namespace kvcache::server
