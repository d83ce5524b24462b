#include "engine/chat/chat_answer.h"

#include "dialect/call_history.h"

namespace kvcache {

using Json = nlohmann::ordered_json;

bool ChatAnswer::Push(std::string_view piece) {
  return Take(parser_.Push(piece));
}

bool ChatAnswer::Finish() {
  return Take(parser_.Flush());
}

bool ChatAnswer::Take(const std::vector<AnswerPart>& parts) {
  for (const AnswerPart& part : parts) {
    switch (part.kind) {
      case AnswerPart::Kind::kText:
        text_ += part.text;
        Pass(on_text_, part.text);
        break;
      case AnswerPart::Kind::kReasoning:
        thoughts_ += part.text;
        Pass(on_thoughts_, part.text);
        break;
      case AnswerPart::Kind::kCallBegin:
      case AnswerPart::Kind::kCallArguments: break;
      case AnswerPart::Kind::kCallEnd: calls_.push_back(part.call); break;
    }
  }
  return !refused_;
}

void ChatAnswer::Pass(const OnText& to, std::string_view text) {
  if (!refused_ && to) refused_ = !to(text);
}

std::vector<ChatCall> ChatAnswer::AddTo(Json& messages, std::string content) const {
  Json message = {{"role", "assistant"}, {"content", std::move(content)}};
  if (!thoughts_.empty()) message["reasoning_content"] = thoughts_;
  messages.push_back(std::move(message));
  std::vector<ChatCall> calls;
  for (const ToolCall& call : calls_) {
    std::string id = call.OwnId();
    if (id.empty()) id = UnusedCallId(messages);
    messages.back()["tool_calls"].push_back(
        {{"id", id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    calls.push_back(
        {.id = std::move(id),
         .name = call.name,
         .arguments = call.arguments.dump(-1, ' ', false, Json::error_handler_t::replace),
         .complete = call.complete});
  }
  return calls;
}

}  // namespace kvcache
