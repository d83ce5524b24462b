// Reads any JSON as what requests contain: messages, items of responses, tools, forms of answers, times. It is
// read, or refused with a message.
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "fuzz_input.h"
#include "json/json_text.h"
#include "json_mutator.h"
#include "server/api/ollama/models.h"
#include "server/api/responses/input.h"
#include "server/request/asked_form.h"
#include "server/request/messages.h"
#include "server/request/tools.h"

namespace kvcache::server {
namespace {

constexpr std::array<std::string_view, 33> kKeys = {
    "messages",     "role",        "content",         "type",
    "text",         "tools",       "tool_choice",     "function",
    "name",         "description", "parameters",      "input_schema",
    "strict",       "tool_calls",  "arguments",       "id",
    "tool_call_id", "tool_use_id", "input",           "output",
    "call_id",      "summary",     "thinking",        "format",
    "json_schema",  "schema",      "response_format", "output_format",
    "keep_alive",   "images",      "allowed_tools",   "mode",
    "is_error"};

void CheckFields(const Fields& fields) {
  if (!fields.ok()) Check(!fields.error().message().empty() && !fields.error_field().empty());
}

void FuzzRequest(const Json& body) {
  for (const auto read :
       {ReadOpenAiTools, ReadResponsesTools, ReadAnthropicTools, ReadOllamaTools}) {
    for (const char* name : {"plain", "hermes"}) {
      Fields fields(body);
      const Tools tools = read(fields, std::make_shared<const Dialect>(*FindDialect(name)));
      CheckFields(fields);
      if (fields.ok()) (void)FormOf(tools, nullptr);
    }
  }
  Fields fields(body);
  (void)ReadAskedForm(fields);
  CheckFields(fields);
  if (body.contains("messages")) (void)ReadMessages(body["messages"]).ok();
  const auto stay = ollama::ReadKeepAlive(body);
  Check(stay.ok() ? !stay->has_value() || **stay >= 0.0 : !stay.status().message().empty());
  if (!body.contains("input")) return;
  Json messages = Json::array();
  const auto none = [](const std::string&) { return std::optional<Json>(); };
  const Status status = responses::AppendItems(body["input"], none, messages);
  Check(status.ok() || !status.message().empty());
}

}  // namespace
}  // namespace kvcache::server

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* bytes, std::size_t size,
                                               std::size_t max, unsigned seed) {
  return kvcache::MutateJson(bytes, size, max, seed, 0, kvcache::server::kKeys);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const auto body = kvcache::ParseJson(text);
  if (body.ok() && body->is_object()) kvcache::server::FuzzRequest(*body);
  return 0;
}
