#include "app/mcp/mcp_client.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "json/json_text.h"

namespace kvcache::app {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::array<std::string_view, 4> kRevisions = {"2025-11-25", "2025-06-18", "2025-03-26",
                                                        "2024-11-05"};
constexpr std::chrono::seconds kStartTime{60};  // a server may be downloaded first
constexpr std::chrono::seconds kCallTime{300};
constexpr std::size_t kMaxTools = 1000;

std::string TextIn(const Json& object, const char* key) {
  const Json value = object.is_object() ? object.value(key, Json()) : Json();
  return value.is_string() ? value.get<std::string>() : "";
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Returns what a part of a result says; the model reads only texts.
std::string TextOfPart(const Json& part) {
  const std::string type = TextIn(part, "type");
  if (type == "text") return TextIn(part, "text");
  if (type == "resource_link") return TextIn(part, "uri");
  if (type == "resource") {
    const Json resource = part.value("resource", Json());
    const std::string text = TextIn(resource, "text");
    return text.empty() ? StrCat("[", TextIn(resource, "uri"), "]") : text;
  }
  return StrCat("[", type, " ", TextIn(part, "mimeType"), "]");
}

McpResult ResultOf(const Json& json) {
  McpResult result{.is_error = json.is_object() && json.value("isError", Json()) == true};
  const Json parts = json.is_object() ? json.value("content", Json()) : Json();
  for (const Json& part : parts.is_array() ? parts : Json::array()) {
    if (!result.text.empty()) result.text += '\n';
    result.text += TextOfPart(part);
  }
  if (parts.empty() && json.is_object() && json.contains("structuredContent")) {
    result.text = Dump(json["structuredContent"]);
  }
  return result;
}

}  // namespace

McpClient::McpClient(McpServer server, std::unique_ptr<ChildProcess> process)
    : server_(std::move(server)), process_(std::move(process)) {}

Result<std::unique_ptr<McpClient>> McpClient::Open(const McpServer& server) {
  const std::string context = StrCat("the MCP server ", Quoted(server.name));
  auto process = ChildProcess::Start(server);
  if (!process.ok()) return std::move(process).TakeStatus().WithContext(context);
  std::unique_ptr<McpClient> client(new McpClient(server, std::move(*process)));
  KVCACHE_RETURN_IF_ERROR(client->Greet().WithContext(context));
  KVCACHE_RETURN_IF_ERROR(client->ListTools().WithContext(context));
  return client;
}

Result<McpResult> McpClient::Call(const std::string& tool, const Json& arguments) {
  auto result = Request("tools/call", {{"name", tool}, {"arguments", arguments}}, kCallTime);
  if (!result.ok()) {
    return std::move(result).TakeStatus().WithContext(
        StrCat("the MCP server ", Quoted(server_.name)));
  }
  return ResultOf(*result);
}

Status McpClient::Greet() {
  KVCACHE_ASSIGN_OR_RETURN(
      const Json greeting,
      Request("initialize",
              {{"protocolVersion", "2025-06-18"},
               {"capabilities", Json::object()},
               {"clientInfo", {{"name", "kvcache"}, {"version", KVCACHE_VERSION}}}},
              kStartTime));
  const std::string revision = TextIn(greeting, "protocolVersion");
  if (std::find(kRevisions.begin(), kRevisions.end(), revision) == kRevisions.end()) {
    return Unsupported(StrCat("speaks revision ", Quoted(revision), " of the protocol; known are ",
                              kRevisions.back(), " to ", kRevisions.front()));
  }
  return Send({{"jsonrpc", "2.0"}, {"method", "notifications/initialized"}},
              Clock::now() + kStartTime);
}

Status McpClient::ListTools() {
  Json params = Json::object();
  for (;;) {
    KVCACHE_ASSIGN_OR_RETURN(const Json page, Request("tools/list", params, kStartTime));
    const Json list = page.is_object() ? page.value("tools", Json()) : Json();
    if (!list.is_array())
      return InvalidArgument("answers 'tools/list' without an array of 'tools'");
    for (const Json& tool : list) {
      McpTool taken{.name = TextIn(tool, "name"), .description = TextIn(tool, "description")};
      if (taken.name.empty()) return InvalidArgument("lists a tool without a 'name'");
      taken.parameters = tool.value("inputSchema", Json::object());
      tools_.push_back(std::move(taken));
    }
    const std::string next = TextIn(page, "nextCursor");
    if (next.empty()) return Status::Ok();
    if (tools_.size() > kMaxTools || list.empty()) {
      return Unsupported(StrCat("lists more than ", kMaxTools, " tools"));
    }
    params = {{"cursor", next}};
  }
}

Result<Json> McpClient::Request(std::string_view method, Json params, std::chrono::seconds time) {
  const auto deadline = Clock::now() + time;
  const std::int64_t id = ++requests_;
  KVCACHE_RETURN_IF_ERROR(
      Send({{"jsonrpc", "2.0"}, {"id", id}, {"method", method}, {"params", std::move(params)}},
           deadline));
  auto answer = Answer(id, deadline);
  if (answer.ok() || answer.status().code() != StatusCode::kCancelled) return answer;
  (void)Send(
      {{"jsonrpc", "2.0"}, {"method", "notifications/cancelled"}, {"params", {{"requestId", id}}}},
      Clock::now());
  return answer;
}

Result<Json> McpClient::Answer(std::int64_t id, ChildProcess::Deadline deadline) {
  for (;;) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string line, process_->ReadLine(deadline));
    const auto message = ParseJson(line);
    // Servers print other things to standard output, though they must not.
    if (!message.ok() || !message->is_object()) continue;
    if (message->contains("method")) {
      if (message->contains("id")) KVCACHE_RETURN_IF_ERROR(Reply(*message, deadline));
      continue;
    }
    if (message->value("id", Json()) != id) continue;  // of a call that was cancelled
    if (!message->contains("error")) return message->value("result", Json());
    return InvalidArgument(StrCat("says: ", TextIn((*message)["error"], "message")));
  }
}

Status McpClient::Reply(const Json& request, ChildProcess::Deadline deadline) {
  Json reply = {{"jsonrpc", "2.0"}, {"id", request["id"]}};
  if (request["method"] == "ping") {
    reply["result"] = Json::object();
  } else {
    reply["error"] = {{"code", -32601}, {"message", "this client offers no methods but ping"}};
  }
  return Send(reply, deadline);
}

Status McpClient::Send(const Json& message, ChildProcess::Deadline deadline) {
  return process_->WriteLine(Dump(message), deadline);
}

}  // namespace kvcache::app
