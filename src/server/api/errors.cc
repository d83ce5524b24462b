#include "server/api/errors.h"

#include <utility>

#include "base/strings.h"

namespace kvcache::server {
namespace {

std::string_view AnthropicType(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string_view LlamaCppType(const ApiError& error) {
  if (error.code == "context_length_exceeded") return "exceed_context_size_error";
  switch (error.status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 503: return "unavailable_error";
    default: return error.status < 500 ? "invalid_request_error" : "server_error";
  }
}

Json OrNull(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

}  // namespace

Api ApiOf(std::string_view path) {
  if (path.starts_with("/api/")) return Api::kOllama;
  for (const char* name : {"/completion", "/completions", "/infill", "/props"}) {
    if (path == name) return Api::kLlamaCpp;
  }
  return path.starts_with("/v1/messages") ? Api::kAnthropic : Api::kOpenAi;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json ErrorJson(Api api, const ApiError& error) {
  const char* const type = error.status < 500 ? "invalid_request_error" : "server_error";
  switch (api) {
    case Api::kOllama: return {{"error", error.message}};
    case Api::kAnthropic:
      return {{"type", "error"},
              {"error", {{"type", AnthropicType(error.status)}, {"message", error.message}}}};
    case Api::kLlamaCpp: {
      Json json = {
          {"code", error.status}, {"message", error.message}, {"type", LlamaCppType(error)}};
      json.update(error.more);
      return {{"error", std::move(json)}};
    }
    case Api::kOpenAi: break;
  }
  return {{"error",
           {{"message", error.message},
            {"type", type},
            {"param", OrNull(error.param)},
            {"code", OrNull(error.code)}}}};
}

void SendError(HttpReply& reply, Api api, const ApiError& error) {
  HttpHeaders headers;
  if (error.status == 429 || error.status == 503) headers.emplace_back("Retry-After", "1");
  reply.Send(error.status, Dump(ErrorJson(api, error)), std::move(headers));
}

ApiError FromFields(const Fields& fields) {
  return {.message = fields.error().message(), .param = fields.error_field()};
}

ApiError FromStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported: return {.status = 400, .message = status.message()};
    case StatusCode::kNotFound: return {.status = 404, .message = status.message()};
    case StatusCode::kCacheFull: return {.status = 429, .message = status.message()};
    case StatusCode::kCancelled:
    case StatusCode::kOutOfMemory: return {.status = 503, .message = status.message()};
    default: return {.status = 500, .message = status.message()};
  }
}

}  // namespace kvcache::server
