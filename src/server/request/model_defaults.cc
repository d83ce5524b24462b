#include "server/request/model_defaults.h"

#include <utility>

#include "server/request/fields.h"
#include "server/request/messages.h"

namespace kvcache::server {

void AddStoredMessages(const ServedModel& model, ChatInput& input) {
  const Json* const first = input.messages.empty() ? nullptr : &input.messages.front();
  const bool has_system = first != nullptr && first->value("role", "") == "system";
  const auto after_system = input.messages.begin() + (has_system ? 1 : 0);
  input.messages.insert(after_system, model.messages.begin(), model.messages.end());
  if (has_system || model.system.empty()) return;
  input.messages.insert(input.messages.begin(),
                        Json({{"role", "system"}, {"content", model.system}}));
}

namespace {

// Returns the fields of a request that has none of its own.
Fields DefaultsOf(const ServedModel& model) {
  static const Json kNone = Json::object();
  return Fields(kNone, "", &model.parameters);
}

}  // namespace

std::vector<std::string> StoredStops(const ServedModel& model) {
  return DefaultsOf(model).Texts("stop", 16);
}

std::int32_t StoredMaxTokens(const ServedModel& model) {
  const std::int64_t tokens = DefaultsOf(model).Integer("num_predict", -1, -2, INT32_MAX);
  return tokens < 1 ? -1 : static_cast<std::int32_t>(tokens);
}

Result<Prompt> RenderChat(const RouteContext& context, ChatInput input) {
  AddStoredMessages(context.model, input);
  return context.service.Render(std::move(input));
}

Result<Prompt> RenderMessages(const RouteContext& context, const Fields& fields, ChatInput input) {
  const Json* const messages = fields.Find("messages");
  KVCACHE_ASSIGN_OR_RETURN(input.messages, ReadMessages(messages != nullptr ? *messages : Json()));
  return RenderChat(context, std::move(input));
}

}  // namespace kvcache::server
