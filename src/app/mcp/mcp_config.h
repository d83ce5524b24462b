// Reads which MCP servers to start, from the file that other programs use too:
//
//   {"mcpServers": {"files": {"command": "npx", "args": ["server-filesystem", "."], "env": {"KEY": "value"},
//                             "cwd": "…", "disabled": false, "autoApprove": ["read_file"]}}}
//
// The list may be called "servers", and the tools that need no question "alwaysAllow". Other keys are ignored.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kvcache/status.h"

namespace kvcache::app {

struct McpServer {
  std::string name{};
  std::vector<std::string> command{};                              // with its arguments
  std::vector<std::pair<std::string, std::string>> environment{};  // besides that of this process
  std::string folder{};                                            // empty: that of this process
  std::vector<std::string> allowed{};  // tools that run without a question; "*": all
};

// Returns the servers that are not disabled. Errors name the file, the server and the key.
Result<std::vector<McpServer>> ReadMcpConfig(const std::string& path);

}  // namespace kvcache::app
