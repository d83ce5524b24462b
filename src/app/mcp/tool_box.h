// The tools of all MCP servers of a chat, each under one name.
//
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "app/mcp/mcp_client.h"
#include "kvcache/status.h"

namespace kvcache::app {

class ToolBox {
 public:
  struct Tool {
    std::string name{};  // that the model reads
    McpClient* client = nullptr;
    std::size_t index = 0;  // among the client's tools
    bool allowed = false;   // runs without a question
  };

  // Starts the servers that a file lists. Errors: those of ReadMcpConfig and McpClient::Open; all name the file.
  static Result<std::unique_ptr<ToolBox>> Open(const std::string& path);

  const std::vector<std::unique_ptr<McpClient>>& clients() const { return clients_; }
  const std::vector<Tool>& tools() const { return tools_; }
  // Returns the tools as templates read them.
  nlohmann::ordered_json Describe() const;
  // Returns null if there is no such tool.
  Tool* Find(std::string_view name);
  // Returns the tool as its server lists it.
  static const McpTool& Own(const Tool& tool) { return tool.client->tools()[tool.index]; }
  // Allows a tool, or all with "*". Returns whether there is one of that name.
  bool Allow(std::string_view name);
  // Errors: those of McpClient::Call.
  static Result<McpResult> Call(const Tool& tool, const nlohmann::ordered_json& arguments);

 private:
  ToolBox() = default;
  void AddTools(McpClient& client);
  bool IsShared(const std::string& tool) const;

  std::vector<std::unique_ptr<McpClient>> clients_;
  std::vector<Tool> tools_;
};

}  // namespace kvcache::app
