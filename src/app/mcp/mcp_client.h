// Speaks with one MCP server: JSON-RPC, a message a line.
//
//   initialize ─► notifications/initialized ─► tools/list ─► tools/call, as often as the model asks
//
// The tools are those that the server lists at its start. The client offers nothing to the server but answers to pings,
// which it reads while it waits for an answer.
//
// Source: the Model Context Protocol, revision 2025-11-25; servers of the revisions before are taken too. Servers that
// know the revisions without a greeting only (2026-07-28) refuse the greeting, and their message is the error.
//
// Thread safety: one thread at a time.
#pragma once

#include <chrono>
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

// How long a server may take.
struct McpTimes {
  std::chrono::milliseconds start = std::chrono::minutes(1);  // it may have to be downloaded
  std::chrono::milliseconds call = std::chrono::minutes(5);
};

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
  // Starts the server and asks for its tools, if it has any. Errors name the server and its command.
  static Result<std::unique_ptr<McpClient>> Open(const McpServer& server,
                                                 const McpTimes& times = {});

  const McpServer& server() const { return server_; }
  const std::vector<McpTool>& tools() const { return tools_; }
  // Calls a tool. Errors: kCancelled: Ctrl-C; kIo: the server ended or did not answer in time;
  // kInvalidArgument: what the server refuses. All name the server.
  Result<McpResult> Call(const std::string& tool, const nlohmann::ordered_json& arguments);

 private:
  using Json = nlohmann::ordered_json;

  McpClient(McpServer server, const McpTimes& times, std::unique_ptr<ChildProcess> process);

  Status Greet(ChildProcess::Deadline deadline);
  Status ListTools(ChildProcess::Deadline deadline);
  Status AddTool(const Json& tool);
  // Returns the result of a method. A request that is given up is cancelled.
  Result<Json> Request(std::string_view method, Json params, ChildProcess::Deadline deadline);
  Result<Json> Answer(std::int64_t id, ChildProcess::Deadline deadline);
  // Answers what the server asks.
  Status Reply(const Json& request, ChildProcess::Deadline deadline);
  Status Send(const Json& message, ChildProcess::Deadline deadline);

  McpServer server_;
  McpTimes times_;
  std::unique_ptr<ChildProcess> process_;
  std::vector<McpTool> tools_;
  std::int64_t requests_ = 0;
};

}  // namespace kvcache::app
