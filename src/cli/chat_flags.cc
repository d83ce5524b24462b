#include "cli/chat_flags.h"

#include <utility>

#include "base/strings.h"
#include "cli/terminal.h"
#include "engine/conversation.h"
#include "engine/json_text.h"

namespace kvcache::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kGroup = "Chat";
constexpr const char* kThinking = "enable_thinking";

constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;

Result<ordered_json> ReadToolsFile(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxJsonBytes));
  auto tools = ReadTools(text);
  if (!tools.ok()) return std::move(tools).TakeStatus().WithContext(path);
  return tools;
}

// An empty string, or why the text is no assignment.
std::string VariableError(const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals != std::string::npos && equals != 0) return {};
  return StrCat(Quoted(assignment), " is not of the form NAME=VALUE");
}

// A VALUE that is JSON is that, and all else is text. REQUIRES: VariableError is empty.
Status SetVariable(const std::string& assignment, ordered_json& variables) {
  const std::size_t equals = assignment.find('=');
  const std::string value = assignment.substr(equals + 1);
  auto parsed = ParseJson(value);
  if (parsed.status().code() == StatusCode::kUnsupported) {
    return std::move(parsed).TakeStatus().WithContext(
        StrCat("--var ", Quoted(assignment.substr(0, equals))));
  }
  variables[assignment.substr(0, equals)] = parsed.ok() ? std::move(*parsed) : ordered_json(value);
  return Status::Ok();
}

}  // namespace

void ChatFlags::Add(CLI::App& command) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    return command.add_option(name, value, help)->group(kGroup)->type_name(type);
  };
  auto* chat_flag = command.add_flag("--chat", chat,
                                     "chat although standard input is no terminal: each line is "
                                     "a message or a /command");
  chat_flag->group(kGroup);
  for (const char* prompt : {"--prompt", "--file"}) {
    chat_flag->excludes(command.get_option(prompt));
  }
  auto* raw_flag = command.add_flag("--raw", raw, "the prompt as it is, without a template");
  raw_flag->group(kGroup);
  command
      .add_flag("--special", special,
                "with --raw: the text of a special token in the prompt stands for the token")
      ->group(kGroup)
      ->needs(raw_flag);
  add("--system", system, "TEXT", "the system message")->excludes(raw_flag);
  add("--tools", tools_file, "FILE", "JSON of the tools that the model may call")
      ->excludes(raw_flag);
  add("--chat-template", chat_template, "T",
      "chatml, plain, or a file, instead of the model's own template")
      ->excludes(raw_flag);
  add("--var", variables, "NAME=VALUE", "a variable for the template; may be given several times")
      ->allow_extra_args(false)
      ->check(CLI::Validator(VariableError, ""))
      ->excludes(raw_flag);
  auto* think_flag =
      command.add_flag("--think", think, "ask for reasoning (the variable enable_thinking)");
  think_flag->group(kGroup)->excludes(raw_flag);
  command.add_flag("--no-think", no_think, "ask for none")
      ->group(kGroup)
      ->excludes(think_flag)
      ->excludes(raw_flag);
}

Result<ChatFormat> ChatFlags::Format(const Engine& engine) const {
  const Tokenizer& tokenizer = engine.tokenizer();
  if (raw) return ChatFormat::BuiltIn("plain", tokenizer);
  if (chat_template.empty()) {
    return ChatFormat::ForModel(engine.file(), tokenizer,
                                tools_file.empty() ? ToolUse::kNone : ToolUse::kTools);
  }
  auto built_in = ChatFormat::BuiltIn(chat_template, tokenizer);
  if (built_in.ok()) return built_in;
  auto source = ReadTextFile(chat_template, kMaxTemplateBytes);
  if (source.ok()) return ChatFormat::FromSource(*source, chat_template, tokenizer);
  return Status(source.status().code(),
                StrCat("--chat-template is chatml, plain or a file: ", source.status().message()));
}

Status ChatFlags::Fill(ChatInput& input) const {
  if (system) input.messages.push_back({{"role", "system"}, {"content", *system}});
  if (!tools_file.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(input.tools, ReadToolsFile(tools_file));
  }
  if (think || no_think) input.variables[kThinking] = think;
  for (const std::string& assignment : variables) {
    KVCACHE_RETURN_IF_ERROR(SetVariable(assignment, input.variables));
  }
  return Status::Ok();
}

std::string Unheard(const ChatFormat& format, const ChatInput& input) {
  std::string warnings;
  const auto check = [&](bool given, std::string_view variable, std::string_view what) {
    if (!given || format.Mentions(variable)) return;
    warnings += StrCat(OneLine(format.name()), " has no place for ", what,
                       ": the model will not see ", what == "tools" ? "them" : "it", "\n");
  };
  check(!input.tools.is_null(), "tools", "tools");
  for (const auto& [name, value] : input.variables.items()) {
    check(true, name, StrCat("the variable ", Quoted(name)));
  }
  return warnings;
}

Status WithAdvice(Status status) {
  if (status.ok()) return status;
  return {status.code(), StrCat(status.message(),
                                "; --chat-template chatml or FILE takes another template, --raw "
                                "none")};
}

}  // namespace kvcache::cli
