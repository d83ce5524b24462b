#include "app/mcp/mcp_client.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "json/json_text.h"

namespace kvcache::app {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::array<std::string_view, 4> kRevisions = {"2025-11-25", "2025-06-18", "2025-03-26",
                                                        "2024-11-05"};
constexpr std::chrono::milliseconds kNoticeTime{200};
constexpr std::size_t kMaxTools = 1000;
constexpr std::size_t kMaxMessageBytes = 500;  // of an error, in ours

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
  if (type == "resource_link") return StrCat(TextIn(part, "name"), " ", TextIn(part, "uri"));
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

// Returns what an error of a server says.
std::string ErrorText(const Json& error) {
  const std::string message = TextIn(error, "message");
  return std::string(BeginningOf(message.empty() ? Dump(error) : message, kMaxMessageBytes));
}

// Returns whether a line that is no JSON was meant as a message: servers print other things, too, though they must not.
bool IsMeantAsMessage(std::string_view line) {
  return line.find("\"jsonrpc\"") != std::string_view::npos;
}

std::string CommandLineOf(const McpServer& server) {
  std::string words;
  for (const std::string& word : server.command) words += StrCat(words.empty() ? "" : " ", word);
  return words;
}

}  // namespace

McpClient::McpClient(McpServer server, const McpTimes& times, std::unique_ptr<ChildProcess> process)
    : server_(std::move(server)), times_(times), process_(std::move(process)) {}

Result<std::unique_ptr<McpClient>> McpClient::Open(const McpServer& server, const McpTimes& times) {
  const auto deadline = Clock::now() + times.start;
  const std::string context =
      StrCat("the MCP server ", Quoted(server.name), " (", Quoted(CommandLineOf(server), 200), ")");
  auto process = ChildProcess::Start(server);
  if (!process.ok()) return std::move(process).TakeStatus().WithContext(context);
  std::unique_ptr<McpClient> client(new McpClient(server, times, std::move(*process)));
  KVCACHE_RETURN_IF_ERROR(client->Greet(deadline).WithContext(context));
  return client;
}

Result<McpResult> McpClient::Call(const std::string& tool, const Json& arguments) {
  auto result =
      Request("tools/call", {{"name", tool}, {"arguments", arguments}}, Clock::now() + times_.call);
  if (!result.ok()) {
    return std::move(result).TakeStatus().WithContext(
        StrCat("the MCP server ", Quoted(server_.name)));
  }
  return ResultOf(*result);
}

Status McpClient::Greet(ChildProcess::Deadline deadline) {
  KVCACHE_ASSIGN_OR_RETURN(
      const Json greeting,
      Request("initialize",
              {{"protocolVersion", kRevisions.front()},
               {"capabilities", Json::object()},
               {"clientInfo", {{"name", "kvcache"}, {"version", KVCACHE_VERSION}}}},
              deadline));
  const std::string revision = TextIn(greeting, "protocolVersion");
  if (std::find(kRevisions.begin(), kRevisions.end(), revision) == kRevisions.end()) {
    return Unsupported(StrCat("speaks revision ", Quoted(revision), " of the protocol; known are ",
                              kRevisions.back(), " to ", kRevisions.front()));
  }
  KVCACHE_RETURN_IF_ERROR(
      Send({{"jsonrpc", "2.0"}, {"method", "notifications/initialized"}}, deadline));
  const Json capabilities = greeting.value("capabilities", Json());
  const bool has_tools = capabilities.is_object() && capabilities.contains("tools");
  return has_tools ? ListTools(deadline) : Status::Ok();
}

Status McpClient::ListTools(ChildProcess::Deadline deadline) {
  Json params = Json::object();
  for (std::size_t pages = 0; pages < kMaxTools; ++pages) {
    KVCACHE_ASSIGN_OR_RETURN(const Json page, Request("tools/list", params, deadline));
    const Json list = page.is_object() ? page.value("tools", Json()) : Json();
    if (!list.is_array()) {
      return InvalidArgument("answers 'tools/list' without an array of 'tools'");
    }
    for (const Json& tool : list) KVCACHE_RETURN_IF_ERROR(AddTool(tool));
    const std::string next = TextIn(page, "nextCursor");
    if (tools_.size() > kMaxTools) break;
    if (next.empty()) return Status::Ok();
    params = {{"cursor", next}};
  }
  return Unsupported(StrCat("lists more than ", kMaxTools, " tools, or as many pages"));
}

// A tool that runs as a task only is left out: nobody here would ask how far it is.
Status McpClient::AddTool(const Json& tool) {
  McpTool taken{.name = TextIn(tool, "name"), .description = TextIn(tool, "description")};
  if (taken.name.empty()) return InvalidArgument("lists a tool without a 'name'");
  if (TextIn(tool.value("execution", Json()), "taskSupport") == "required") return Status::Ok();
  taken.parameters = tool.value("inputSchema", Json());
  if (!taken.parameters.is_object()) taken.parameters = {{"type", "object"}};
  tools_.push_back(std::move(taken));
  return Status::Ok();
}

Result<Json> McpClient::Request(std::string_view method, Json params,
                                ChildProcess::Deadline deadline) {
  const std::int64_t id = ++requests_;
  const Status sent =
      Send({{"jsonrpc", "2.0"}, {"id", id}, {"method", method}, {"params", std::move(params)}},
           deadline);
  auto answer = sent.ok() ? Answer(id, deadline) : Result<Json>(sent);
  const bool gives_up = !answer.ok() && answer.status().code() != StatusCode::kInvalidArgument;
  // A greeting must not be cancelled.
  if (gives_up && method != "initialize") {
    (void)Send({{"jsonrpc", "2.0"},
                {"method", "notifications/cancelled"},
                {"params", {{"requestId", id}}}},
               Clock::now() + kNoticeTime);
  }
  return answer;
}

Result<Json> McpClient::Answer(std::int64_t id, ChildProcess::Deadline deadline) {
  for (;;) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string line, process_->ReadLine(deadline));
    auto parsed = ParseJson(line);
    if (!parsed.ok()) {
      if (!IsMeantAsMessage(line)) continue;
      return std::move(parsed).TakeStatus().WithContext("writes a message that cannot be read");
    }
    // Servers of the revision 2025-03-26 write several messages at once.
    const Json messages = parsed->is_array() ? *parsed : Json::array({*parsed});
    std::optional<Json> answer;
    for (const Json& message : messages) {
      if (!message.is_object()) continue;
      const Json message_id = message.value("id", Json());
      if (message.contains("method")) {
        if (!message_id.is_null()) KVCACHE_RETURN_IF_ERROR(Reply(message, deadline));
      } else if (message_id == id || (message_id.is_null() && message.contains("error"))) {
        answer = message;
      }  // else it is the answer to a request that was cancelled
    }
    if (!answer) continue;
    if (!answer->contains("error")) return answer->value("result", Json());
    return InvalidArgument(StrCat("says: ", ErrorText((*answer)["error"])));
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
