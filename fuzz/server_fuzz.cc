// Sends requests to a server with a small random model, on all routes: each is answered, with what HTTP and JSON allow,
// and with an error of the client's unless the server is too busy. No answer says that the server has a fault.
//
//   input   a byte that selects the route, then JSON. An object replaces keys of a right request of that route.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "fuzz_input.h"
#include "json_mutator.h"
#include "kvcache_engine/engine.h"
#include "make_model/make_model.h"
#include "server/server.h"

namespace kvcache::server {
namespace {

using nlohmann::json;

struct FuzzedRoute {
  std::string_view path;  // ID: that of the last response that was stored
  std::string_view body;  // of a right request
  std::string_view method = "POST";
};

constexpr std::string_view kChat =
    R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":4})";
constexpr std::string_view kPrompt = R"({"prompt":"hi","max_tokens":4,"n_predict":4})";
constexpr std::string_view kOllama =
    R"({"model":"m","messages":[{"role":"user","content":"hi"}],"options":{"num_predict":4}})";

// Those that exist and those that do not, as clients of other servers ask for them.
constexpr std::array kRoutes = {
    FuzzedRoute{"/v1/chat/completions", kChat},
    FuzzedRoute{"/v1/messages", kChat},
    FuzzedRoute{"/v1/responses", R"({"input":"hi","max_output_tokens":4})"},
    FuzzedRoute{"/api/chat", kOllama},
    FuzzedRoute{"/v1/completions", kPrompt},
    FuzzedRoute{"/api/generate", R"({"model":"m","prompt":"hi","options":{"num_predict":4}})"},
    FuzzedRoute{"/v1/messages/count_tokens", kChat},
    FuzzedRoute{"/v1/responses/input_tokens", R"({"input":"hi"})"},
    FuzzedRoute{"/v1/responses/compact", R"({"input":"hi"})"},
    FuzzedRoute{"/tokenize", R"({"content":"hi"})"},
    FuzzedRoute{"/detokenize", R"({"tokens":[1,5]})"},
    FuzzedRoute{"/apply-template", kChat},
    FuzzedRoute{"/probe", kChat},
    FuzzedRoute{"/completion", kPrompt},
    FuzzedRoute{"/infill", R"({"input_prefix":"a","input_suffix":"b","n_predict":4})"},
    FuzzedRoute{"/api/show", R"({"model":"m"})"},
    FuzzedRoute{"/api/create", R"({"model":"n","from":"m"})"},
    FuzzedRoute{"/api/copy", R"({"source":"m","destination":"n"})"},
    FuzzedRoute{"/api/embed", R"({"model":"m","input":"hi"})"},
    FuzzedRoute{"/chat/completions", kChat},
    FuzzedRoute{"/completions", kPrompt},
    FuzzedRoute{"/v1/responses/ID/input_items?limit=2", "{}", "GET"},
    FuzzedRoute{"/v1/responses/ID?stream=true", "{}", "GET"},
    FuzzedRoute{"/v1/responses/ID/cancel", "{}"},
    FuzzedRoute{"/v1/responses/ID", "{}", "DELETE"},
    FuzzedRoute{"/state/prefix?id=1", "{}", "GET"},
    FuzzedRoute{"/v1/models/m", "{}", "GET"},
};

// Some of the names that requests have, on any route.
constexpr std::array<std::string_view, 115> kKeys = {"model",
                                                     "messages",
                                                     "role",
                                                     "content",
                                                     "type",
                                                     "text",
                                                     "stream",
                                                     "stream_options",
                                                     "include_usage",
                                                     "max_tokens",
                                                     "max_completion_tokens",
                                                     "max_output_tokens",
                                                     "temperature",
                                                     "top_p",
                                                     "top_k",
                                                     "min_p",
                                                     "typical_p",
                                                     "seed",
                                                     "stop",
                                                     "stop_sequences",
                                                     "n",
                                                     "best_of",
                                                     "n_predict",
                                                     "n_probs",
                                                     "logprobs",
                                                     "top_logprobs",
                                                     "echo",
                                                     "suffix",
                                                     "logit_bias",
                                                     "presence_penalty",
                                                     "frequency_penalty",
                                                     "repeat_penalty",
                                                     "repeat_last_n",
                                                     "response_format",
                                                     "json_schema",
                                                     "schema",
                                                     "strict",
                                                     "name",
                                                     "description",
                                                     "parameters",
                                                     "input_schema",
                                                     "tools",
                                                     "tool_choice",
                                                     "function",
                                                     "functions",
                                                     "function_call",
                                                     "arguments",
                                                     "tool_calls",
                                                     "tool_call_id",
                                                     "tool_use_id",
                                                     "tool_result",
                                                     "tool_use",
                                                     "tool_reference",
                                                     "tool_addition",
                                                     "tool_removal",
                                                     "id",
                                                     "input",
                                                     "instructions",
                                                     "reasoning",
                                                     "reasoning_content",
                                                     "reasoning_effort",
                                                     "effort",
                                                     "thinking",
                                                     "think",
                                                     "budget_tokens",
                                                     "verbosity",
                                                     "previous_response_id",
                                                     "store",
                                                     "metadata",
                                                     "user",
                                                     "system",
                                                     "options",
                                                     "num_predict",
                                                     "num_ctx",
                                                     "keep_alive",
                                                     "format",
                                                     "images",
                                                     "image_url",
                                                     "source",
                                                     "grammar",
                                                     "guided_json",
                                                     "guided_regex",
                                                     "guided_choice",
                                                     "guided_grammar",
                                                     "structured_outputs",
                                                     "structural_tag",
                                                     "regex",
                                                     "choice",
                                                     "prompt",
                                                     "chat_template_kwargs",
                                                     "continue_final_message",
                                                     "add_generation_prompt",
                                                     "allowed_tools",
                                                     "mode",
                                                     "samplers",
                                                     "ignore_eos",
                                                     "min_tokens",
                                                     "stop_token_ids",
                                                     "input_prefix",
                                                     "input_suffix",
                                                     "input_extra",
                                                     "filename",
                                                     "call_id",
                                                     "output",
                                                     "summary",
                                                     "encrypted_content",
                                                     "include",
                                                     "truncation",
                                                     "cache_control",
                                                     "betas",
                                                     "context",
                                                     "template",
                                                     "raw",
                                                     "limit",
                                                     "order"};

// Has tools, calls of the syntax that answers are read in, and thoughts.
constexpr const char* kTemplate =
    R"({% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>{% endif %}{% endif %})";

class FuzzedServer {
 public:
  FuzzedServer() {
    const std::string path =
        std::filesystem::temp_directory_path() / StrCat("kvcache-server-fuzz-", getpid(), ".gguf");
    make_model::Request request;
    request.shape.layers = 1;
    request.shape.vocab = 300;
    request.shape.context = 96;
    request.chat_template = kTemplate;
    request.control_tokens = {"<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_suffix|>",
                              "<|fim_middle|>"};
    Check(make_model::MakeModel(request, path).ok());
    auto engine = Engine::Open(path, {.threads = 1, .context = 96, .max_sequences = 4});
    Check(engine.ok());
    engine_ = std::move(*engine);
    auto server = Server::Start(*engine_, {.name = "m"}, {});
    Check(server.ok());
    server_ = std::move(*server);
    std::filesystem::remove(path);
  }

  std::string Ask(const FuzzedRoute& route, std::string_view body) {
    std::string path(route.path);
    if (const std::size_t at = path.find("ID"); at != path.npos) path.replace(at, 2, last_id_);
    const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Check(connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    const std::string request =
        StrCat(route.method, " ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
               "Content-Length: ", body.size(), "\r\n\r\n", body);
    (void)send(descriptor, request.data(), request.size(), MSG_NOSIGNAL);
    std::string answer;
    char bytes[1 << 14];
    for (ssize_t size = 1; size > 0;) {
      size = recv(descriptor, bytes, sizeof(bytes), 0);
      if (size > 0) answer.append(bytes, static_cast<std::size_t>(size));
    }
    (void)close(descriptor);
    const std::size_t id = answer.find("\"resp_");
    if (id != answer.npos) last_id_ = answer.substr(id + 1, answer.find('"', id + 1) - id - 1);
    return answer;
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Server> server_;
  std::string last_id_ = "resp_1";
};

void CheckAnswer(const std::string& answer, std::string_view body) {
  const std::size_t end = answer.find("\r\n\r\n");
  const bool is_http = answer.starts_with("HTTP/1.1 ") && end != std::string::npos;
  const std::string status = is_http ? answer.substr(9, 3) : "";
  const bool right = status.size() == 3 && (status[0] == '2' || status[0] == '4');
  if (!right) std::fprintf(stderr, "%s\n%s\n", std::string(body).c_str(), answer.c_str());
  Check(right);
  const std::string head = answer.substr(0, end);
  if (head.find("chunked") != std::string::npos) return;
  if (head.find("application/json") == std::string::npos) return;
  const json value = json::parse(answer.substr(end + 4), nullptr, false);
  Check(!value.is_discarded());
  Check(status[0] != '4' || value.contains("error"));
}

}  // namespace
}  // namespace kvcache::server

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* bytes, std::size_t size,
                                               std::size_t max, unsigned seed) {
  return kvcache::MutateJson(bytes, size, max, seed, 1, kvcache::server::kKeys);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace kvcache;
  using namespace kvcache::server;
  static FuzzedServer server;
  std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const FuzzedRoute& route = kRoutes[TakeByte(&text) % kRoutes.size()];
  const nlohmann::json changes = nlohmann::json::parse(text, nullptr, false);
  std::string body(text);
  if (changes.is_object()) {
    nlohmann::json request = nlohmann::json::parse(route.body);
    request.merge_patch(changes);
    body = request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  CheckAnswer(server.Ask(route, body), body);
  return 0;
}
