#include "server/access.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "server/http/cors.h"

namespace kvcache::server {
namespace {

std::string ToLower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return lower;
}

// Returns whether a Host header names this machine's loopback.
bool IsLoopbackName(std::string_view host) {
  const std::size_t bracket = host.starts_with('[') ? host.find(']') : host.npos;
  const std::size_t end =
      std::min(bracket == host.npos ? host.find(':') : bracket + 1, host.size());
  const std::string_view port = host.substr(end);
  if (!port.empty() && (port[0] != ':' || port.find_first_not_of("0123456789", 1) != port.npos)) {
    return false;
  }
  const std::string name = ToLower(host.substr(0, end));
  return host.empty() || name == "localhost" || name == "127.0.0.1" || name == "[::1]";
}

// Returns the key of "Authorization: Bearer KEY", else that of "x-api-key: KEY".
std::string_view KeyOf(const HttpRequest& request) {
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view given = request.authorization;
  const bool is_bearer = ToLower(given.substr(0, kBearer.size())) == kBearer;
  return is_bearer ? given.substr(kBearer.size()) : std::string_view(request.api_key);
}

}  // namespace

Access::Access(const HttpOptions& http, std::optional<ApiKeys> keys)
    : keys_(std::move(keys)),
      only_loopback_(http.address.starts_with("127.") || http.address == "::1"),
      has_tls_(!http.tls_key.empty()),
      allowed_origins_(http.allowed_origins) {}

std::optional<ApiError> Access::CheckHost(const HttpRequest& request) const {
  if (!only_loopback_ || IsLoopbackName(request.host)) return std::nullopt;
  return ApiError{.status = 403,
                  .message = StrCat("the host ", Quoted(request.host),
                                    " is not a loopback name, and this server is local")};
}

std::optional<ApiError> Access::Identify(const HttpRequest& request, Audience audience,
                                         User* user) const {
  *user = {.is_admin = !keys_};
  if (!keys_ || audience == Audience::kEveryone) return std::nullopt;
  const User* const found = keys_->Find(KeyOf(request));
  if (found == nullptr) {
    const bool has_key = !request.authorization.empty() || !request.api_key.empty();
    return ApiError{.status = 401,
                    .message = has_key ? "the API key is unknown" : "the request needs an API key",
                    .code = "invalid_api_key"};
  }
  *user = *found;
  if (audience != Audience::kAdministrators || user->is_admin) return std::nullopt;
  return ApiError{.status = 403, .message = request.path + " needs an administrator's key"};
}

bool Access::MayChange(const HttpRequest& request, const User& user) const {
  if (keys_) return user.is_admin;
  const char* const scheme = has_tls_ ? "https://" : "http://";
  const bool is_foreign = !request.origin.empty() && request.origin != scheme + request.host;
  return request.from_loopback && (!is_foreign || AllowsOrigin(allowed_origins_, request.origin));
}

std::optional<ApiError> Access::CheckChange(const HttpRequest& request, const User& user) const {
  if (MayChange(request, user)) return std::nullopt;
  return ApiError{.status = 403,
                  .message =
                      "only this machine or an administrator's key may change the list of "
                      "models"};
}

}  // namespace kvcache::server
