#include "app/mcp/mcp_config.h"

#include <nlohmann/json.hpp>

#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "base/strings.h"
#include "json/json_text.h"

namespace kvcache::app {
namespace {

using Json = nlohmann::ordered_json;

// Reads the entry of one server; errors name the key.
class ServerReader {
 public:
  explicit ServerReader(const Json& json) : json_(json) {}

  Result<std::string> Text(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return std::string();
    return TextOf(*found, key, "a string");
  }

  Result<std::vector<std::string>> Texts(const char* key) const {
    std::vector<std::string> texts;
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return texts;
    if (!found->is_array()) return Wrong(key, "an array of strings");
    for (const Json& item : *found) {
      KVCACHE_ASSIGN_OR_RETURN(std::string text, TextOf(item, key, "an array of strings"));
      texts.push_back(std::move(text));
    }
    return texts;
  }

  Result<std::vector<std::pair<std::string, std::string>>> Environment() const {
    std::vector<std::pair<std::string, std::string>> variables;
    const auto found = json_.find("env");
    if (found == json_.end() || found->is_null()) return variables;
    if (!found->is_object()) return Wrong("env", "an object of strings");
    for (const auto& [name, value] : found->items()) {
      const bool is_name =
          !name.empty() && name.find_first_of(std::string_view("=\0", 2)) == name.npos;
      if (!is_name) return InvalidArgument(StrCat("'env' has the name ", Quoted(name)));
      KVCACHE_ASSIGN_OR_RETURN(std::string text, TextOf(value, "env", "an object of strings"));
      variables.emplace_back(name, std::move(text));
    }
    return variables;
  }

 private:
  // The system takes texts that end at a NUL.
  static Result<std::string> TextOf(const Json& json, const char* key, const char* rule) {
    if (!json.is_string()) return Wrong(key, rule);
    std::string text = json.get<std::string>();
    if (text.find('\0') != std::string::npos) {
      return InvalidArgument(StrCat("'", key, "' has a NUL byte"));
    }
    // Editors fill these in before they start a server.
    for (const char* const variable : {"${input:", "${env:", "${workspaceFolder", "${userHome"}) {
      if (text.find(variable) == std::string::npos) continue;
      return InvalidArgument(
          StrCat("'", key, "' has an editor's variable, ", Quoted(text), "; write its value"));
    }
    return text;
  }

  static Status Wrong(const char* key, const char* rule) {
    return InvalidArgument(StrCat("'", key, "' must be ", rule));
  }

  const Json& json_;
};

Result<McpServer> ReadServer(const std::string& name, const Json& json) {
  if (!json.is_object()) return InvalidArgument("must be an object");
  const ServerReader reader(json);
  McpServer server{.name = name};
  KVCACHE_ASSIGN_OR_RETURN(std::string command, reader.Text("command"));
  if (command.empty() && json.contains("url")) {
    return Unsupported(
        "has a 'url'; only servers with a 'command', which speak over standard input, are started");
  }
  if (command.empty()) return InvalidArgument("needs a 'command'");
  KVCACHE_ASSIGN_OR_RETURN(server.command, reader.Texts("args"));
  server.command.insert(server.command.begin(), std::move(command));
  KVCACHE_ASSIGN_OR_RETURN(server.environment, reader.Environment());
  KVCACHE_ASSIGN_OR_RETURN(server.folder, reader.Text("cwd"));
  for (const char* const key : {"autoApprove", "alwaysAllow"}) {
    KVCACHE_ASSIGN_OR_RETURN(const auto allowed, reader.Texts(key));
    server.allowed.insert(server.allowed.end(), allowed.begin(), allowed.end());
  }
  return server;
}

Result<std::vector<McpServer>> ReadServers(const std::string& text) {
  KVCACHE_ASSIGN_OR_RETURN(const Json file, ParseJson(text));
  const Json* list = nullptr;
  for (const char* const key : {"mcpServers", "servers"}) {
    if (list == nullptr && file.is_object() && file.contains(key)) list = &file[key];
  }
  if (list == nullptr || !list->is_object()) {
    return InvalidArgument("needs an object 'mcpServers' with an entry for each server");
  }
  std::vector<McpServer> servers;
  for (const auto& [name, entry] : list->items()) {
    if (entry.is_object() && entry.value("disabled", Json()) == true) continue;
    auto server = ReadServer(name, entry);
    if (!server.ok()) {
      return std::move(server).TakeStatus().WithContext(StrCat("the server ", Quoted(name)));
    }
    servers.push_back(std::move(*server));
  }
  return servers;
}

}  // namespace

Result<std::vector<McpServer>> ReadMcpConfig(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxJsonBytes));
  auto servers = ReadServers(text);
  if (!servers.ok()) return std::move(servers).TakeStatus().WithContext(path);
  return servers;
}

}  // namespace kvcache::app
