#include "server/api/responses/conversation.h"

#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "server/api/responses/input.h"
#include "server/request/messages.h"
#include "server/request/model_defaults.h"

namespace kvcache::server::responses {
namespace {

// Appends the conversation of the response that the request goes on from. Returns whether it is stored.
bool AppendPrevious(const RouteContext& context, const std::string& id, const FindItem& find,
                    Conversation& conversation) {
  auto stored = context.responses.Get(id, context.user.salt);
  if (!stored) return false;
  conversation.items = std::move(stored->items);
  for (const Json& item : stored->response["output"]) conversation.items.push_back(item);
  return AppendItems(conversation.items, find, conversation.messages).ok();
}

}  // namespace

std::optional<Conversation> ReadConversation(const RouteContext& context, Fields& fields) {
  const auto refuse = [&](const auto&... error) {
    context.Refuse(error...);
    return std::nullopt;
  };
  const FindItem find = [&](const std::string& id) {
    return context.responses.GetItem(id, context.user.salt);
  };
  const std::string previous = fields.Text("previous_response_id");
  if (!fields.ok()) return refuse(fields);
  Conversation conversation;
  if (!previous.empty() && !AppendPrevious(context, previous, find, conversation)) {
    return refuse(ApiError{.message = StrCat("there is no response ", Quoted(previous),
                                             "; it may be too old, or was not stored"),
                           .param = "previous_response_id",
                           .code = "previous_response_not_found"});
  }
  if (const Json* const input = fields.Find("input"); input != nullptr) {
    const Status status = AppendItems(*input, find, conversation.messages);
    if (!status.ok()) return refuse(status, "input");
    for (Json& item : WholeItems(*input, find)) conversation.items.push_back(std::move(item));
  }
  if (conversation.messages.empty()) {
    return refuse(InvalidArgument("'input' must have at least one message"), "input");
  }
  return conversation;
}

std::optional<Prompt> Render(const RouteContext& context, Fields& fields, ChatInput input) {
  if (const std::string text = fields.Text("instructions"); !text.empty()) {
    input.messages.insert(input.messages.begin(), Json({{"role", "system"}, {"content", text}}));
  }
  auto read = ReadMessages(input.messages);
  if (read.ok()) input.messages = std::move(*read);
  auto prompt = read.ok() ? RenderChat(context, std::move(input)) : read.status();
  if (prompt.ok()) return std::move(*prompt);
  context.Refuse(prompt.status(), "input");
  return std::nullopt;
}

Json Usage(const TextResult& result) {
  return {{"input_tokens", result.reuse.prompt},
          {"input_tokens_details", {{"cached_tokens", result.reuse.restored}}},
          {"output_tokens", result.generated},
          {"output_tokens_details", {{"reasoning_tokens", result.thoughts}}},
          {"total_tokens", result.reuse.prompt + result.generated}};
}

}  // namespace kvcache::server::responses
