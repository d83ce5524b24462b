#include "app/mcp/tool_box.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace kvcache::app {
namespace {

constexpr std::size_t kMaxName = 64;  // that models were trained with

// Returns the text with '_' for what names of functions do not have.
std::string AsName(std::string text) {
  for (char& c : text) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '-';
    if (!fits) c = '_';
  }
  return text.substr(0, kMaxName);
}

bool Allows(const McpServer& server, const std::string& tool) {
  return std::any_of(server.allowed.begin(), server.allowed.end(),
                     [&](const std::string& name) { return name == "*" || name == tool; });
}

}  // namespace

Result<std::unique_ptr<ToolBox>> ToolBox::Open(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<McpServer> servers, ReadMcpConfig(path));
  std::unique_ptr<ToolBox> box(new ToolBox);
  for (const McpServer& server : servers) {
    auto client = McpClient::Open(server);
    if (!client.ok()) return std::move(client).TakeStatus().WithContext(path);
    box->clients_.push_back(std::move(*client));
  }
  for (const auto& client : box->clients_) box->AddTools(*client);
  return box;
}

nlohmann::ordered_json ToolBox::Describe() const {
  auto list = nlohmann::ordered_json::array();
  for (const Tool& tool : tools_) {
    const McpTool& own = Own(tool);
    list.push_back({{"type", "function"},
                    {"function",
                     {{"name", tool.name},
                      {"description", own.description},
                      {"parameters", own.parameters}}}});
  }
  return list;
}

ToolBox::Tool* ToolBox::Find(std::string_view name) {
  const auto found = std::find_if(tools_.begin(), tools_.end(),
                                  [&](const Tool& tool) { return tool.name == name; });
  return found == tools_.end() ? nullptr : &*found;
}

bool ToolBox::Allow(std::string_view name) {
  bool found = name == "*";
  for (Tool& tool : tools_) {
    if (name != "*" && name != tool.name) continue;
    tool.allowed = true;
    found = true;
  }
  return found;
}

Result<McpResult> ToolBox::Call(const Tool& tool, const nlohmann::ordered_json& arguments) {
  return tool.client->Call(Own(tool).name, arguments);
}

// A name that several servers have gets the server's in front, and a number if it is still taken.
void ToolBox::AddTools(McpClient& client) {
  for (std::size_t i = 0; i < client.tools().size(); ++i) {
    const std::string& own = client.tools()[i].name;
    const std::string whole = IsShared(own) ? StrCat(client.server().name, "_", own) : own;
    std::string name = AsName(whole);
    for (int number = 2; Find(name) != nullptr; ++number) {
      const std::string suffix = StrCat("_", number);
      name = AsName(whole).substr(0, kMaxName - suffix.size()) + suffix;
    }
    tools_.push_back({.name = std::move(name),
                      .client = &client,
                      .index = i,
                      .allowed = Allows(client.server(), own)});
  }
}

bool ToolBox::IsShared(const std::string& tool) const {
  const auto has = [&](const std::unique_ptr<McpClient>& client) {
    return std::any_of(client->tools().begin(), client->tools().end(),
                       [&](const McpTool& own) { return own.name == tool; });
  };
  return std::count_if(clients_.begin(), clients_.end(), has) > 1;
}

}  // namespace kvcache::app
