#include "cli/chat_commands.h"

#include <charconv>

#include "base/strings.h"
#include "cli/conversation_file.h"

namespace kvcache::cli {
namespace {

using nlohmann::ordered_json;

struct Request {
  std::string argument;
  Chat& chat;
  RunFlags& flags;
  std::string& say;

  ordered_json& messages() const { return chat.input().messages; }
};

Status Wrong(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

bool HasRole(const ordered_json& message, std::string_view role) {
  return message.value("role", "") == role;
}

bool HasSystem(const ordered_json& messages) {
  return !messages.empty() && HasRole(messages.front(), "system");
}

std::string Counted(const ordered_json& messages) {
  return StrCat(messages.size(), messages.size() == 1 ? " message" : " messages");
}

Result<AfterCommand> Help(const Request& request);

Result<AfterCommand> Clear(const Request& request) {
  ordered_json& messages = request.messages();
  const std::size_t kept = HasSystem(messages) ? 1 : 0;
  messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(kept), messages.end());
  request.say = kept == 1 ? "forgotten; the system message stays" : "forgotten";
  return AfterCommand::kReadOn;
}

Result<AfterCommand> Save(const Request& request) {
  if (request.argument.empty()) return Wrong("/save needs a file's name");
  KVCACHE_RETURN_IF_ERROR(SaveConversation(request.argument, request.chat.input()));
  request.say = StrCat(Counted(request.messages()), " saved to ", request.argument);
  return AfterCommand::kReadOn;
}

Result<AfterCommand> Load(const Request& request) {
  if (request.argument.empty()) return Wrong("/load needs a file's name");
  KVCACHE_RETURN_IF_ERROR(LoadConversation(request.argument, request.chat.input()));
  request.say = StrCat(Counted(request.messages()), " loaded from ", request.argument);
  return AfterCommand::kReadOn;
}

Result<AfterCommand> System(const Request& request) {
  ordered_json& messages = request.messages();
  if (request.argument.empty()) {
    request.say =
        HasSystem(messages) ? messages.front().value("content", "") : "there is no system message";
    return AfterCommand::kReadOn;
  }
  if (!HasSystem(messages)) messages.insert(messages.begin(), ordered_json::object());
  messages.front() = {{"role", "system"}, {"content", request.argument}};
  request.say = "the system message is set";
  return AfterCommand::kReadOn;
}

// The index of the next user's message at or after `at`; the end if there is none.
std::size_t NextTurn(const ordered_json& messages, std::size_t at) {
  while (at < messages.size() && !HasRole(messages[at], "user")) ++at;
  return at;
}

Result<AfterCommand> Forget(const Request& request) {
  int count = 1;
  const std::string& argument = request.argument;
  const auto [end, error] =
      std::from_chars(argument.data(), argument.data() + argument.size(), count);
  if (!argument.empty() && (error != std::errc() || count < 1)) {
    return Wrong("/forget takes how many exchanges");
  }
  ordered_json& messages = request.messages();
  const std::size_t first = HasSystem(messages) ? 1 : 0;
  std::size_t last = NextTurn(messages, first);
  int forgotten = 0;
  for (; forgotten < count && last < messages.size(); ++forgotten) {
    last = NextTurn(messages, last + 1);
  }
  messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(first),
                 messages.begin() + static_cast<std::ptrdiff_t>(last));
  request.say = StrCat("the oldest ", forgotten, forgotten == 1 ? " exchange is" : " exchanges are",
                       " forgotten; left: ", Counted(messages));
  return AfterCommand::kReadOn;
}

Result<AfterCommand> Retry(const Request& request) {
  ordered_json& messages = request.messages();
  while (!messages.empty() && HasRole(messages.back(), "assistant")) {
    messages.erase(messages.end() - 1);
  }
  if (messages.empty() || HasRole(messages.back(), "system")) {
    return Wrong("there is nothing to answer again");
  }
  ++request.flags.sampling.seed;  // the same numbers would give the same answer
  return AfterCommand::kAnswer;
}

Result<AfterCommand> Think(const Request& request) {
  if (request.argument != "on" && request.argument != "off") {
    return Wrong("/think takes on or off");
  }
  request.chat.input().variables["enable_thinking"] = request.argument == "on";
  request.say = Unheard(request.chat.format(), request.chat.input());
  if (!request.say.empty()) request.say.pop_back();
  return AfterCommand::kReadOn;
}

Result<double> Number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Wrong(StrCat(Quoted(text), " is not a number"));
  }
  return number;
}

Result<AfterCommand> Set(const Request& request) {
  const std::size_t space = request.argument.find(' ');
  if (space == std::string::npos) {
    return Wrong(
        "/set takes one of temp, top-k, top-p, min-p, repeat-penalty, seed, n, and a "
        "number");
  }
  const std::string name = request.argument.substr(0, space);
  KVCACHE_ASSIGN_OR_RETURN(const double number,
                           Number(std::string_view(request.argument).substr(space + 1)));
  if (!(number > -1e9 && number < 1e15)) return Wrong("such a number cannot be");
  SamplingParams sampling = request.flags.sampling;
  if (name == "temp") {
    sampling.temperature = static_cast<float>(number);
  } else if (name == "top-k") {
    sampling.top_k = static_cast<std::int32_t>(std::min(number, 1e9));
  } else if (name == "top-p") {
    sampling.top_p = static_cast<float>(number);
  } else if (name == "min-p") {
    sampling.min_p = static_cast<float>(number);
  } else if (name == "repeat-penalty") {
    sampling.repeat_penalty = static_cast<float>(number);
  } else if (name == "seed" && number >= 0) {
    sampling.seed = static_cast<std::uint64_t>(number);
  } else if (name == "n") {
    request.flags.max_tokens = static_cast<std::int32_t>(std::clamp(number, -1.0, 1e9));
  } else {
    return Wrong(StrCat("/set knows no ", Quoted(name)));
  }
  KVCACHE_RETURN_IF_ERROR(sampling.Check());
  request.flags.sampling = sampling;
  return AfterCommand::kReadOn;
}

Result<AfterCommand> Quit(const Request&) {
  return AfterCommand::kQuit;
}

struct NamedCommand {
  std::string_view name;
  std::string_view argument;
  std::string_view help;  // empty: another name of the one before
  Result<AfterCommand> (*run)(const Request& request);
};

constexpr NamedCommand kCommands[] = {
    {"help", "", "this list", Help},
    {"clear", "", "forgets the conversation, but for the system message", Clear},
    {"forget", "[N]", "forgets the oldest exchange, or the N oldest, to make room", Forget},
    {"retry", "", "answers the last message anew", Retry},
    {"system", "[TEXT]", "sets or shows the system message", System},
    {"think", "on|off", "reasoning, where the template has a switch for it", Think},
    {"set", "NAME N", "temp, top-k, top-p, min-p, repeat-penalty, seed, n", Set},
    {"save", "FILE", "writes the conversation to a file (JSON)", Save},
    {"load", "FILE", "takes a conversation from a file", Load},
    {"quit", "", "ends the chat, as Ctrl-D does", Quit},
    {"exit", "", "", Quit},
    {"bye", "", "", Quit},
    {"?", "", "", Help},
};

Result<AfterCommand> Help(const Request& request) {
  for (const NamedCommand& command : kCommands) {
    if (command.help.empty()) continue;
    std::string left = StrCat("/", command.name, " ", command.argument);
    left.resize(std::max<std::size_t>(left.size() + 1, 18), ' ');
    request.say += StrCat(left, command.help, "\n");
  }
  request.say +=
      "\"\"\" begins and ends a message of several lines, \\ at a line's end goes on.\n"
      "// begins a message with a slash. Ctrl-C ends an answer, a second one the chat.";
  return AfterCommand::kReadOn;
}

}  // namespace

bool IsCommand(std::string_view text) {
  return text.starts_with('/') && !text.starts_with("//");
}

Result<AfterCommand> RunCommand(std::string_view text, Chat& chat, RunFlags& flags,
                                std::string& say) {
  text.remove_prefix(1);
  const std::size_t end = std::min(text.find_first_of(" \n"), text.size());
  const std::string_view name = text.substr(0, end);
  const std::size_t begin = std::min(text.find_first_not_of(" \n", end), text.size());
  std::string argument(text.substr(begin));
  while (argument.ends_with(' ')) argument.pop_back();
  for (const NamedCommand& command : kCommands) {
    if (command.name != name) continue;
    return command.run({std::move(argument), chat, flags, say});
  }
  return Wrong(StrCat("there is no command /", name,
                      "; /help lists them, // begins a message "
                      "with a slash"));
}

}  // namespace kvcache::cli
