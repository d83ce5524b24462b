#include "chat_template/chat_template.h"

#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "chat_template/interpreter.h"
#include "chat_template/syntax/parser.h"
#include "chat_template/value/value_json.h"

namespace kvcache {
namespace {

using nlohmann::ordered_json;

// Units of work per byte of input. Templates process contents many times.
constexpr std::uint64_t kWorkPerByte = 256;

// The memory of a rendering. Templates hold a conversation and its prompt a few times.
constexpr std::uint64_t kMemory = std::uint64_t{1} << 27;
constexpr std::uint64_t kMemoryPerByte = 64;

std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  (void)localtime_r(&now, &local);
  return local;
}

Status CheckMessages(const ordered_json& messages) {
  if (!messages.is_array()) {
    return InvalidArgument(
        StrCat("messages have JSON type ", messages.type_name(), "; must be an array"));
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ordered_json& message = messages[i];
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return InvalidArgument(StrCat("message ", i + 1, " of ", messages.size(),
                                    " has no role; must be an object with a string \"role\""));
    }
  }
  return Status::Ok();
}

Status CheckInput(const ChatInput& input) {
  KVCACHE_RETURN_IF_ERROR(CheckMessages(input.messages));
  if (!input.tools.is_null() && !input.tools.is_array()) {
    return InvalidArgument(
        StrCat("tools have JSON type ", input.tools.type_name(), "; must be an array of objects"));
  }
  if (!input.variables.is_object()) {
    return InvalidArgument(StrCat("variables have JSON type ", input.variables.type_name(),
                                  "; must be an object of names and values"));
  }
  return Status::Ok();
}

using Variables = std::vector<std::pair<std::string, jinja::Value>>;

Result<Variables> MakeVariables(const ChatInput& input, jinja::Budget& budget) {
  Variables variables;
  const auto add = [&](const std::string& name, const ordered_json& json, jinja::Roles roles) {
    auto value = jinja::FromJson(json, roles, budget);
    if (!value.ok()) return std::move(value).TakeStatus().WithContext(name);
    variables.emplace_back(name, std::move(value).value());
    return Status::Ok();
  };
  // Later values replace earlier ones of the same name.
  for (const auto& [name, value] : input.variables.items()) {
    KVCACHE_RETURN_IF_ERROR(add(name, value, jinja::Roles::kForeign));
  }
  KVCACHE_RETURN_IF_ERROR(add("messages", input.messages, jinja::Roles::kKnownAreTrusted));
  KVCACHE_RETURN_IF_ERROR(add("tools", input.tools, jinja::Roles::kForeign));
  if (!input.variables.contains("documents")) {
    variables.emplace_back("documents", jinja::Value::None());
  }
  variables.emplace_back(
      "add_generation_prompt",
      jinja::Value::Bool(input.generation_prompt == GenerationPrompt::kAdd ||
                         input.generation_prompt == GenerationPrompt::kByLastMessage));
  variables.emplace_back("bos_token", jinja::Value::Literal(input.bos));
  variables.emplace_back("eos_token", jinja::Value::Literal(input.eos));
  return variables;
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<const jinja::ParsedTemplate> parsed)
    : parsed_(std::move(parsed)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  KVCACHE_ASSIGN_OR_RETURN(jinja::ParsedTemplate parsed, jinja::ParseTemplate(source));
  return ChatTemplate(std::make_unique<const jinja::ParsedTemplate>(std::move(parsed)));
}

Result<ChatText> ChatTemplate::Render(const ChatInput& input, const RenderLimits& limits) const {
  KVCACHE_RETURN_IF_ERROR(CheckInput(input));
  // Converting the input is not charged to the template.
  constexpr std::uint64_t kInputLimit = std::uint64_t{1} << 33;
  jinja::Budget for_input({.units = kInputLimit, .memory_bytes = kInputLimit});
  KVCACHE_ASSIGN_OR_RETURN(Variables variables, MakeVariables(input, for_input));
  const std::uint64_t input_size = for_input.spent() / 64;
  jinja::Environment env{
      .budget = jinja::Budget({.units = limits.work + input_size * kWorkPerByte,
                               .seconds = limits.seconds,
                               .memory_bytes = kMemory + input_size * kMemoryPerByte}),
      .now = input.now ? *input.now : LocalTime(),
  };
  jinja::Interpreter interpreter(*parsed_, std::move(variables), std::move(env));
  KVCACHE_ASSIGN_OR_RETURN(const jinja::MarkedText text, interpreter.Run());
  return ChatText{std::string(text.bytes()), text.Foreign()};
}

const std::vector<std::string>& ChatTemplate::literals() const {
  return parsed_->literals;
}

bool ChatTemplate::Mentions(std::string_view variable) const {
  return parsed_->names.contains(variable);
}

}  // namespace kvcache
