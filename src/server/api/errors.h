// The APIs, and the shapes of their errors.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <string_view>

#include "kvcache/status.h"
#include "server/http/http_server.h"
#include "server/request/fields.h"

namespace kvcache::server {

enum class Api { kOpenAi, kAnthropic, kOllama, kLlamaCpp };

// Returns the API that `path` belongs to, also if there is no such route. A request asks once
// (ServerContext::api).
Api ApiOf(std::string_view path);

struct ApiError {
  int status = 400;
  std::string message;
  std::string param{};         // the field; empty: none
  std::string code{};          // empty: none
  Json more = Json::object();  // further keys, of llama.cpp's errors
};

Json ErrorJson(Api api, const ApiError& error);
void SendError(HttpReply& reply, Api api, const ApiError& error);
// Returns JSON in one line; bytes that are not UTF-8 become U+FFFD.
std::string Dump(const Json& json);

ApiError FromFields(const Fields& fields);
ApiError FromStatus(const Status& status);

}  // namespace kvcache::server
