// Checks how files of MCP servers are read, and what the client makes of servers that work and of others.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "app/mcp/mcp_client.h"
#include "app/mcp/mcp_config.h"
#include "app/mcp/tool_box.h"
#include "app/terminal/terminal.h"

namespace kvcache::app::mcp_test {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

// The beginning of this process's paths: tests run at the same time.
std::string Folder() {
  return ::testing::TempDir() + std::to_string(getpid()) + "_";
}

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = Folder() + name;
  std::ofstream(path) << text;
  return path;
}

McpServer ServerWith(const std::string& fault) {
  return {.name = "test", .command = {MCP_PYTHON, MCP_SERVER, fault}};
}

// As main does, for writes to a server that has ended.
const auto ignored_signal = std::signal(SIGPIPE, SIG_IGN);

// Returns the error of opening a server with a fault.
std::string ErrorOf(const std::string& fault) {
  const milliseconds start(fault == "mute" ? 1000 : 60'000);
  const auto client = McpClient::Open(ServerWith(fault), {.start = start});
  return client.ok() ? "" : client.status().message();
}

std::unique_ptr<McpClient> Opened(const std::string& fault,
                                  milliseconds call = milliseconds(20'000)) {
  auto client = McpClient::Open(ServerWith(fault), {.call = call});
  EXPECT_TRUE(client.ok()) << client.status().message();
  return client.ok() ? std::move(*client) : nullptr;
}

std::string TextOf(McpClient& client, const std::string& tool,
                   const Json& arguments = Json::object()) {
  const auto result = client.Call(tool, arguments);
  return result.ok() ? result->text : result.status().message();
}

TEST(McpConfig, ReadsTheFormOfOtherPrograms) {
  const auto servers = ReadMcpConfig(WriteFile("good.json", R"({"mcpServers": {
    "one": {"command": "npx", "args": ["-y", "x"], "env": {"A": "1"}, "cwd": "/tmp", "type": "stdio",
            "autoApprove": ["read"]},
    "two": {"url": "http://x", "disabled": true},
    "three": {"command": "x", "alwaysAllow": ["*"], "args": null}}})"));
  ASSERT_TRUE(servers.ok()) << servers.status().message();
  ASSERT_EQ(servers->size(), 2u);
  const McpServer& one = servers->front();
  EXPECT_EQ(one.name, "one");
  EXPECT_EQ(one.command, (std::vector<std::string>{"npx", "-y", "x"}));
  EXPECT_EQ(one.environment.front(), (std::pair<std::string, std::string>("A", "1")));
  EXPECT_EQ(one.folder, "/tmp");
  EXPECT_EQ(one.allowed, std::vector<std::string>{"read"});
  EXPECT_EQ((*servers)[1].allowed, std::vector<std::string>{"*"});
  EXPECT_TRUE(ReadMcpConfig(WriteFile("other.json", R"({"servers": {}})")).ok());
}

TEST(McpConfig, ErrorsNameTheFileTheServerAndTheKey) {
  struct Case {
    std::string text, words;
  };
  const Case cases[] = {
      {"no json", "JSON"},
      {"[]", "'mcpServers'"},
      {R"({"mcpServers": []})", "'mcpServers'"},
      {R"({"mcpServers": {"s": 1}})", "'s': must be an object"},
      {R"({"mcpServers": {"s": {}}})", "'s': needs a 'command'"},
      {R"({"mcpServers": {"s": {"url": "http://x"}}})", "'s': has a 'url'"},
      {R"({"mcpServers": {"s": {"command": 1}}})", "'s': 'command' must be a string"},
      {R"({"mcpServers": {"s": {"command": "x", "args": "y"}}})", "'args' must be an array"},
      {R"({"mcpServers": {"s": {"command": "x", "args": [1]}}})", "'args' must be an array"},
      {R"({"mcpServers": {"s": {"command": "x", "env": []}}})", "'env' must be an object"},
      {R"({"mcpServers": {"s": {"command": "x", "env": {"A": 1}}}})", "'env' must be an object"},
      {R"({"mcpServers": {"s": {"command": "x", "env": {"A=B": "1"}}}})",
       "'env' has the name 'A=B'"},
      {R"({"mcpServers": {"s": {"command": "x\u0000y"}}})", "'command' has a NUL byte"},
      {R"({"mcpServers": {"s": {"command": "x", "cwd": {}}}})", "'cwd' must be a string"},
      {R"({"mcpServers": {"s": {"command": "x", "autoApprove": true}}})", "'autoApprove' must be"},
  };
  for (const Case& each : cases) {
    const std::string path = WriteFile("bad.json", each.text);
    const auto servers = ReadMcpConfig(path);
    ASSERT_FALSE(servers.ok()) << each.text;
    const std::string& message = servers.status().message();
    EXPECT_NE(message.find(each.words), message.npos) << message;
    EXPECT_TRUE(message.starts_with(path)) << message;
  }
  EXPECT_FALSE(ReadMcpConfig(Folder() + "nothing.json").ok());
}

TEST(McpClient, ListsToolsOfAllPagesAndCallsThem) {
  for (const char* const fault : {"", "chatty", "batch"}) {
    const auto client = Opened(fault);
    ASSERT_NE(client, nullptr);
    ASSERT_EQ(client->tools().size(), 8u) << fault;  // the one that runs as a task is left out
    EXPECT_EQ(client->tools()[0].name, "add");
    EXPECT_EQ(client->tools()[5].parameters, Json({{"type", "object"}}));
    EXPECT_EQ(TextOf(*client, "add", {{"a", 2}, {"b", 3}}), "5");
    EXPECT_EQ(TextOf(*client, "say", {{"text", "ä\n\x1b[2J\"\\"}}), "ä\n\x1b[2J\"\\");
    EXPECT_EQ(TextOf(*client, "big").size(), 100'000u);
    EXPECT_EQ(TextOf(*client, "table"), R"({"rows":[1,2]})");
    EXPECT_EQ(TextOf(*client, "parts"), "[image image/png]\nx file:///x\nwhy\n[ ]");
    const auto failed = client->Call("fail", Json::object());
    ASSERT_TRUE(failed.ok());
    EXPECT_TRUE(failed->is_error);
    EXPECT_EQ(failed->text, "it cannot be done");
    EXPECT_EQ(TextOf(*client, "add", {{"a", 2}}),
              "the MCP server 'test': says: wrong arguments: 'b'");
    EXPECT_EQ(TextOf(*client, "add", {{"a", 1}, {"b", 1}}), "2");
  }
  const auto bare = Opened("bare");
  ASSERT_NE(bare, nullptr);
  EXPECT_TRUE(bare->tools().empty());
}

TEST(McpClient, ServersThatDoNotStart) {
  const std::pair<std::string, std::string> cases[] = {
      {"dies", "has ended; it said: no such account"}, {"mute", "does not answer in time"},
      {"old", "speaks revision '1999-01-01'"},         {"endless", "lists more than 1000 tools"},
      {"nameless", "lists a tool without a 'name'"},   {"listless", "without an array of 'tools'"},
      {"unknown", "says: no such language"},
  };
  for (const auto& [fault, words] : cases) {
    const std::string message = ErrorOf(fault);
    EXPECT_NE(message.find(words), message.npos) << fault << ": " << message;
    EXPECT_TRUE(message.starts_with("the MCP server 'test' (")) << message;
    EXPECT_NE(message.find("mcp_server.py " + fault), message.npos) << message;
  }
  const auto missing = McpClient::Open({.name = "x", .command = {"/nonexistent/program"}});
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("cannot start '/nonexistent/program'"),
            std::string::npos);
  const auto homeless =
      McpClient::Open({.name = "x", .command = {MCP_PYTHON}, .folder = "/nonexistent"});
  ASSERT_FALSE(homeless.ok());
  EXPECT_NE(homeless.status().message().find("in the folder '/nonexistent'"), std::string::npos);
}

TEST(McpClient, ServersThatFailLater) {
  const auto leaves = Opened("leaves");
  ASSERT_NE(leaves, nullptr);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(TextOf(*leaves, "fail"),
              "the MCP server 'test': has ended; it said: the disk is full");
  }
  const auto broken = Opened("broken");
  ASSERT_NE(broken, nullptr);
  EXPECT_NE(TextOf(*broken, "fail").find("writes a message that cannot be read"),
            std::string::npos);
  EXPECT_NE(TextOf(*broken, "fail").find("writes a message that cannot be read"),
            std::string::npos);
  const auto huge = Opened("huge");
  ASSERT_NE(huge, nullptr);
  EXPECT_EQ(TextOf(*huge, "fail"), "the MCP server 'test': writes a line of more than 16 MiB");
  const auto slow = Opened("", milliseconds(2000));
  ASSERT_NE(slow, nullptr);
  EXPECT_EQ(TextOf(*slow, "slow"), "the MCP server 'test': does not answer in time");
  EXPECT_EQ(TextOf(*slow, "add", {{"a", 2}, {"b", 3}}), "5");
}

TEST(McpClient, AServerThatReadsNothingDoesNotBlockTheClient) {
  const auto deaf = Opened("deaf", milliseconds(300));
  ASSERT_NE(deaf, nullptr);
  const std::string text(std::size_t{1} << 20, 'x');
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(TextOf(*deaf, "say", {{"text", text}}),
              "the MCP server 'test': does not answer in time");
  }
}

TEST(McpClient, AServerThatWritesWithoutEndFillsNoMemory) {
  const auto flood = Opened("flood", milliseconds(1500));
  ASSERT_NE(flood, nullptr);
  EXPECT_EQ(TextOf(*flood, "fail"), "the MCP server 'test': writes without end and does not read");
}

TEST(McpClient, TheWholeStartHasOneDeadline) {
  const McpServer servers[] = {ServerWith("sluggish"), {.name = "x", .command = {"yes"}}};
  for (const McpServer& server : servers) {
    const auto begin = std::chrono::steady_clock::now();
    const auto client = McpClient::Open(server, {.start = milliseconds(1000)});
    ASSERT_FALSE(client.ok());
    EXPECT_NE(client.status().message().find("does not answer in time"), std::string::npos);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  }
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(McpClient, CtrlCCancelsACall) {
  const std::string log = WriteFile("log.txt", "");
  McpServer server = ServerWith("");
  server.environment = {{"MCP_TEST_LOG", log}};
  auto client = McpClient::Open(server);
  ASSERT_TRUE(client.ok()) << client.status().message();
  (void)CatchInterrupt();
  std::thread key([&] {
    while (ReadFile(log).find("tools/call slow") == std::string::npos) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    (void)kill(getpid(), SIGINT);
  });
  const auto result = (*client)->Call("slow", Json::object());
  key.join();
  ForgetInterrupt();
  EXPECT_EQ(result.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(TextOf(**client, "add", {{"a", 2}, {"b", 3}}), "5");
  EXPECT_NE(ReadFile(log).find("tools/call slow\nnotifications/cancelled\ntools/call add\n"),
            std::string::npos);
}

// Returns whether the process ends. A system may leave the entry of a process that has ended, so its memory tells.
bool EndsSoon(int pid) {
  for (int i = 0; i < 2000; ++i) {
    if (ReadFile("/proc/" + std::to_string(pid) + "/cmdline").empty()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

TEST(McpClient, EndsWithItsServer) {
  const std::string log = WriteFile("log.txt", "");
  McpServer server = ServerWith("");
  server.environment = {{"MCP_TEST_LOG", log}};
  ASSERT_TRUE(McpClient::Open(server).ok());
  EXPECT_TRUE(ReadFile(log).ends_with("ended\n"));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_NE(Opened("stays"), nullptr);  // ignores SIGTERM as well
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(McpClient, EndsProcessesThatItsServerLeaves) {
  const std::string log = WriteFile("log.txt", "");
  McpServer server = ServerWith("parent");
  server.environment = {{"MCP_TEST_LOG", log}};
  ASSERT_TRUE(McpClient::Open(server).ok());
  const std::string text = ReadFile(log);
  ASSERT_TRUE(text.starts_with("pid ")) << text;
  EXPECT_TRUE(text.ends_with("ended\n")) << text;
  EXPECT_TRUE(EndsSoon(std::stoi(text.substr(4))));
}

TEST(McpClient, ASecondCtrlCLeavesNoServer) {
  const std::string log = WriteFile("log.txt", "");
  const pid_t program = fork();
  if (program == 0) {
    (void)CatchInterrupt();
    McpServer server = ServerWith("stays");
    server.environment = {{"MCP_TEST_LOG", log}};
    (void)McpClient::Open(server);
    _exit(0);  // the server takes seconds to end
  }
  while (!ReadFile(log).ends_with("stays\n")) std::this_thread::sleep_for(milliseconds(5));
  int status = 0;
  while (waitpid(program, &status, WNOHANG) == 0) {
    (void)kill(program, SIGINT);
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_TRUE(EndsSoon(std::stoi(ReadFile(log).substr(4))));
}

TEST(ToolBox, NamesAreUniqueAndFitModels) {
  const std::string entry = std::string(R"({"command": ")") + MCP_PYTHON + R"(", "args": [")" +
                            MCP_SERVER + R"("], "autoApprove": ["say"]})";
  const auto box = ToolBox::Open(
      WriteFile("two.json", R"({"mcpServers": {"x y": )" + entry + R"(, "x.y": )" + entry + "}}"));
  ASSERT_TRUE(box.ok()) << box.status().message();
  EXPECT_EQ((*box)->tools().size(), 16u);
  for (const char* const name : {"x_y_add", "x_y_add_2", "x_y_a_b", "x_y_a_b_2"}) {
    EXPECT_NE((*box)->Find(name), nullptr) << name;
  }
  EXPECT_EQ((*box)->Find("add"), nullptr);
  EXPECT_TRUE((*box)->Find("x_y_say")->allowed);
  EXPECT_FALSE((*box)->Allow("add"));
  EXPECT_TRUE((*box)->Allow("x_y_add"));
  EXPECT_TRUE((*box)->Find("x_y_add")->allowed);
  EXPECT_FALSE((*box)->Find("x_y_add_2")->allowed);
  const auto result = ToolBox::Call(*(*box)->Find("x_y_a_b_2"), Json::object());
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->text, "a.b");
  EXPECT_EQ((*box)->Describe().size(), 16u);
}

}  // namespace
}  // namespace kvcache::app::mcp_test
