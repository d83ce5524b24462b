#include "app/flags/chat_flags.h"

#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"

namespace kvcache::app {
namespace {

constexpr const char* kChatGroup = "Chat";
constexpr const char* kThinking = "enable_thinking";

constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;

Status CheckAssignment(const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals != std::string::npos && equals != 0) return Status::Ok();
  return InvalidArgument(StrCat(Quoted(assignment), " is not of the form NAME=VALUE"));
}

}  // namespace

void ChatFlags::Add(FlagSet command) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    return command.AddText(name, &value, help).Group(kChatGroup).ValueName(type);
  };
  command
      .AddSwitch("--chat", &chat,
                 "chat even if standard input is not a terminal: each line is a message or a "
                 "/command")
      .Group(kChatGroup)
      .Excludes(command.Find("--prompt"))
      .Excludes(command.Find("--file"));
  const Flag raw_flag =
      command
          .AddSwitch("--raw", &raw,
                     "give the prompt to the model as it is, without a chat template")
          .Group(kChatGroup);
  command
      .AddSwitch("--special", &special,
                 "with --raw: parse special tokens, such as <s>, in the prompt's text")
      .Group(kChatGroup)
      .Needs(raw_flag);
  add("--system", system, "TEXT", "the system message: how the model should answer")
      .Excludes(raw_flag);
  add("--tools", tools_file, "FILE",
      "JSON file of the functions that the model may call, in OpenAI's format")
      .Excludes(raw_flag);
  const Flag mcp_flag =
      add("--mcp", mcp_file, "FILE",
          "start the MCP servers that this JSON file lists ('mcpServers'), and let "
          "the model call their tools, each call after a question")
          .Excludes(raw_flag)
          .Excludes(command.Find("--tools"));
  add("--mcp-allow", mcp_allowed, "TOOL",
      "run this tool without a question, or all with '*'; may be given several times")
      .Needs(mcp_flag);
  add("--chat-template", chat_template, "T",
      "use chatml, plain or a Jinja file instead of the model's own chat template")
      .Excludes(raw_flag);
  add("--dialect", dialect, "NAME",
      "how the model thinks and calls tools, instead of what its template says")
      .Check(CheckDialect)
      .Excludes(raw_flag);
  add("--var", variables, "NAME=VALUE",
      "set a variable of the chat template; may be given several times")
      .Check(CheckAssignment)
      .Excludes(raw_flag);
  const Flag think_flag =
      command
          .AddSwitch("--think", &think,
                     "ask for reasoning before the answer (sets enable_thinking)")
          .Group(kChatGroup)
          .Excludes(raw_flag);
  command.AddSwitch("--no-think", &no_think, "ask for an answer without reasoning")
      .Group(kChatGroup)
      .Excludes(think_flag)
      .Excludes(raw_flag);
}

Result<ModelDialect> ChatFlags::Dialect(const Engine& engine) const {
  return ModelDialect::Make([&](ToolUse tools) { return Format(engine, tools); },
                            engine.tokenizer(), dialect);
}

Result<ChatFormat> ChatFlags::Format(const Engine& engine, ToolUse tools) const {
  const Tokenizer& tokenizer = engine.tokenizer();
  if (raw) return ChatFormat::BuiltIn("plain", tokenizer);
  if (chat_template.empty() && stored_template) {
    return ChatFormat::FromSource(*stored_template, "the stored model's template", tokenizer);
  }
  if (chat_template.empty()) return ChatFormat::ForModel(engine.file(), tokenizer, tools);
  auto built_in = ChatFormat::BuiltIn(chat_template, tokenizer);
  if (built_in.ok()) return built_in;
  auto source = ReadTextFile(chat_template, kMaxTemplateBytes);
  if (source.ok()) return ChatFormat::FromSource(*source, chat_template, tokenizer);
  return Status(source.status().code(),
                StrCat("--chat-template is chatml, plain or a file: ", source.status().message()));
}

Status ChatFlags::Fill(Conversation& conversation) const {
  if (system) conversation.Add("system", *system);
  for (const StoredMessage& message : stored_messages) {
    conversation.Add(message.role, message.content);
  }
  if (!tools_file.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(tools_file, kMaxJsonBytes));
    KVCACHE_RETURN_IF_ERROR(conversation.SetTools(text).WithContext(tools_file));
  }
  if (think || no_think) {
    KVCACHE_RETURN_IF_ERROR(conversation.SetVariable(kThinking, think ? "true" : "false"));
  }
  for (const std::string& assignment : variables) {
    const std::size_t equals = assignment.find('=');
    const std::string name = assignment.substr(0, equals);
    KVCACHE_RETURN_IF_ERROR(conversation.SetVariable(name, assignment.substr(equals + 1))
                                .WithContext(StrCat("--var ", Quoted(name))));
  }
  return Status::Ok();
}

std::string UnusedByTemplate(const Chat& chat) {
  const ChatFormat& format = chat.format();
  const Conversation& conversation = chat.conversation();
  std::string warnings;
  const auto check = [&](std::string_view variable, std::string_view what, std::string_view it) {
    if (format.Mentions(variable)) return;
    warnings += StrCat(OneLine(format.name()), " has no place for ", what,
                       ": the model will not see ", it, "\n");
  };
  // A template that reads no tools may be given them in another way.
  if (conversation.HasTools() && !chat.calls_tools()) check("tools", "tools", "them");
  for (const std::string& name : conversation.variables()) {
    check(name, StrCat("the variable ", Quoted(name)), "it");
  }
  return warnings;
}

Status AdviseOnTemplate(Status status) {
  if (status.ok()) return status;
  return {status.code(), StrCat(status.message(),
                                "; --chat-template chatml or --chat-template FILE uses another "
                                "template, --raw uses none")};
}

}  // namespace kvcache::app
