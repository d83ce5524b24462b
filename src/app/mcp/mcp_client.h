// Speaks with one MCP server: JSON-RPC, a message a line.
//
//   initialize ─► notifications/initialized ─► tools/list ─► tools/call, as often as the model asks
//
// Source: the Model Context Protocol, revision 2025-06-18; servers of the revisions before are taken too.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "app/mcp/child_process.h"
#include "app/mcp/mcp_config.h"
#include "kvcache/status.h"

namespace kvcache::app {

struct McpTool {
  std::string name{};
  std::string description{};
  nlohmann::ordered_json parameters{};  // a JSON schema
};

struct McpResult {
  std::string text{};
  bool is_error = false;  // the tool failed, and the text says why
};

class McpClient {
 public:
  // Starts the server and asks for its tools. Errors name the server.
  static Result<std::unique_ptr<McpClient>> Open(const McpServer& server);

  const McpServer& server() const { return server_; }
  const std::vector<McpTool>& tools() const { return tools_; }
  // Calls a tool. Errors: kCancelled: Ctrl-C; kIo: the server ended or did not answer within five minutes;
  // kInvalidArgument: what the server refuses. All name the server.
  Result<McpResult> Call(const std::string& tool, const nlohmann::ordered_json& arguments);

 private:
  using Json = nlohmann::ordered_json;

  McpClient(McpServer server, std::unique_ptr<ChildProcess> process);

  Status Greet();
  Status ListTools();
  // Returns the result of a method.
  Result<Json> Request(std::string_view method, Json params, std::chrono::seconds time);
  Result<Json> Answer(std::int64_t id, ChildProcess::Deadline deadline);
  // Answers what the server asks.
  Status Reply(const Json& request, ChildProcess::Deadline deadline);
  Status Send(const Json& message, ChildProcess::Deadline deadline);

  McpServer server_;
  std::unique_ptr<ChildProcess> process_;
  std::vector<McpTool> tools_;
  std::int64_t requests_ = 0;
};

}  // namespace kvcache::app
