#include "server/api/responses/compact.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/api/responses/conversation.h"
#include "server/api/responses/input.h"
#include "server/output/delivery.h"
#include "server/output/stamps.h"
#include "server/request/model_defaults.h"
#include "server/request/request_sampling.h"

namespace kvcache::server::responses {
namespace {

constexpr const char* kTask =
    "Summarise this conversation for someone who goes on with it and does not see it: what was "
    "asked for, what was done and found, decisions and their reasons, names and values that are "
    "needed again, and what is left to do. Write the summary and nothing else.";
constexpr std::int32_t kMaxSummary = 2048;  // tokens

class CompactionShape final : public AnswerShape {
 public:
  explicit CompactionShape(Json kept) : output_(std::move(kept)) {}

  const char* prompt_field() const override { return "input"; }
  // It is never streamed.
  std::string Delta(const AnswerPart& /*part*/) override { return {}; }
  std::string End(const TextResult& /*result*/) override { return {}; }

  Json Whole(const Answer& answer, const TextResult& result) override {
    output_.push_back({{"id", NewId("cmp_")},
                       {"type", "compaction"},
                       {"encrypted_content", SealSummary(answer.text)}});
    return {{"id", NewId("resp_")},
            {"object", "response.compaction"},
            {"created_at", UnixSeconds()},
            {"output", output_},
            {"usage", Usage(result)}};
  }

 private:
  Json output_;
};

// Returns the messages that are not the model's. They stay as they are.
Json KeptItems(const Json& items) {
  Json kept = Json::array();
  for (const Json& item : items) {
    if (item["type"] == "message" && item["role"] != "assistant") kept.push_back(item);
  }
  return kept;
}

// Adds the task to the conversation. Some templates want answers between the user's messages.
void AddTask(Json& messages) {
  Json& last = messages.back();
  if (last["role"] != "user") {
    messages.push_back({{"role", "user"}, {"content", kTask}});
  } else {
    last["content"] = last["content"].get<std::string>() + "\n\n" + kTask;
  }
}

}  // namespace

void Compact(const RouteContext& context, const Json& body) {
  Fields fields(body, "", &context.model.parameters);
  TextRequest request{.sampling = ReadSampling(fields), .stop = StoredStops(context.model)};
  request.max_tokens = std::min(kMaxSummary, context.service.engine().context() / 4);
  (void)fields.Text("instructions");
  if (!fields.ok()) return context.Refuse(fields);
  auto conversation = ReadConversation(context, fields);
  if (!conversation) return;
  ChatInput input;
  input.messages = std::move(conversation->messages);
  AddTask(input.messages);
  auto prompt = Render(context, fields, std::move(input));
  if (!prompt) return;
  request.prompt = std::move(*prompt);
  Deliver(context, std::move(request), false,
          std::make_shared<CompactionShape>(KeptItems(conversation->items)));
}

}  // namespace kvcache::server::responses
