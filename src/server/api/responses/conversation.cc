#include "server/api/responses/conversation.h"

#include <utility>

#include "base/strings.h"
#include "server/api/responses/input.h"
#include "server/request/messages.h"
#include "server/request/model_defaults.h"

namespace kvcache::server {
namespace {

// Appends the conversation of the response that the request goes on from. Returns whether it is stored.
bool AppendPrevious(const RouteContext& context, const std::string& id, const FindItem& find,
                    ResponseConversation& conversation) {
  auto stored = context.responses.Get(id, context.user.salt);
  if (!stored) return false;
  conversation.items = std::move(stored->items);
  for (const Json& item : stored->response["output"]) conversation.items.push_back(item);
  return AppendItems(conversation.items, find, conversation.messages).ok();
}

}  // namespace

std::optional<ResponseConversation> ReadResponseConversation(const RouteContext& context,
                                                             Fields& fields, HttpReply& reply) {
  const auto refuse = [&](const ApiError& error) {
    SendError(reply, Api::kOpenAi, error);
    return std::nullopt;
  };
  const FindItem find = [&](const std::string& id) {
    return context.responses.GetItem(id, context.user.salt);
  };
  const std::string previous = fields.Text("previous_response_id");
  if (!fields.ok()) return refuse(FromFields(fields));
  ResponseConversation conversation;
  if (!previous.empty() && !AppendPrevious(context, previous, find, conversation)) {
    return refuse({.message = StrCat("there is no response ", Quoted(previous),
                                     "; it may be too old, or was not stored"),
                   .param = "previous_response_id",
                   .code = "previous_response_not_found"});
  }
  if (const Json* const input = fields.Find("input"); input != nullptr) {
    const Status status = AppendItems(*input, find, conversation.messages);
    if (!status.ok()) {
      ApiError error = FromStatus(status);
      if (status.code() == StatusCode::kUnsupported) error.status = 404;
      error.param = "input";
      return refuse(error);
    }
    for (Json& item : WholeItems(*input, find)) conversation.items.push_back(std::move(item));
  }
  if (conversation.messages.empty()) {
    return refuse({.message = "'input' must have at least one message", .param = "input"});
  }
  return conversation;
}

std::optional<Prompt> RenderResponse(const RouteContext& context, Fields& fields, ChatInput input,
                                     HttpReply& reply) {
  if (const std::string text = fields.Text("instructions"); !text.empty()) {
    input.messages.insert(input.messages.begin(), Json({{"role", "system"}, {"content", text}}));
  }
  auto read = ReadMessages(input.messages);
  if (read.ok()) input.messages = std::move(read->messages);
  auto prompt = read.ok() ? RenderChat(context, std::move(input)) : read.status();
  if (prompt.ok()) return std::move(*prompt);
  ApiError error = FromStatus(prompt.status());
  error.param = "input";
  SendError(reply, Api::kOpenAi, error);
  return std::nullopt;
}

Json ResponseUsage(const TextResult& result) {
  return {{"input_tokens", result.reuse.prompt},
          {"input_tokens_details", {{"cached_tokens", result.reuse.restored}}},
          {"output_tokens", result.generated},
          {"output_tokens_details", {{"reasoning_tokens", result.thoughts}}},
          {"total_tokens", result.reuse.prompt + result.generated}};
}

}  // namespace kvcache::server
