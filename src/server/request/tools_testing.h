// A server with a model that says what a script says, and requests with its tool, for tests.
#pragma once

#include <filesystem>
#include <string>

#include "engine/engine_impl.h"
#include "server/server_testing.h"
#include "support/scripted_model.h"

namespace kvcache::server {

inline const std::string kThoughts = "The user wants the weather.";
inline const std::string kText = "Let me look.";
inline const Json kArguments = {{"city", "Paris"}};

// A server whose model, "scripted", calls get_weather.
class ScriptedServerTest : public ServerTest {
 protected:
  explicit ScriptedServerTest(int context = 1024) : context_(context) {}
  void SetUp() override {
    path_ = ::testing::TempDir() + "scripted." + std::to_string(getpid()) + ".gguf";
    const Status written = ScriptedModel::Write(path_);
    ASSERT_TRUE(written.ok()) << written.message();
    auto engine = Engine::Open(path_, {.threads = 1, .context = context_, .max_sequences = 2});
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    scripted_ = std::move(*engine);
    auto server = Server::Start(*scripted_, {.name = "scripted"}, {});
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove(path_);
  }

  const int context_;
  std::string path_;
  std::unique_ptr<Engine> scripted_;
};

class ToolsTest : public ScriptedServerTest {
 protected:
  static Json Function() {
    return {{"name", "get_weather"},
            {"description", "Weather"},
            {"parameters", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}}}};
  }
  static Json Question() {
    return Json::array({Json({{"role", "user"}, {"content", "How is the weather?"}})});
  }
  static Json OpenAi() {
    return {{"messages", Question()},
            {"temperature", 0},
            {"tools", Json::array({Json({{"type", "web_search"}}),
                                   Json({{"type", "function"}, {"function", Function()}})})}};
  }
  static Json Anthropic() {
    const Json function = Function();
    return {{"messages", Question()},
            {"max_tokens", 100},
            {"temperature", 0},
            {"tools", Json::array({Json({{"type", "bash_20250124"}, {"name", "bash"}}),
                                   Json({{"name", function["name"]},
                                         {"description", function["description"]},
                                         {"input_schema", function["parameters"]}})})}};
  }
};

}  // namespace kvcache::server
