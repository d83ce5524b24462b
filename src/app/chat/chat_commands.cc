#include "app/chat/chat_commands.h"

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "app/chat/conversation_file.h"
#include "base/errors.h"
#include "base/parse_number.h"
#include "base/strings.h"

namespace kvcache::app {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

struct Request : ChatState {
  std::string argument;
  std::string& say;

  Conversation& conversation() const { return chat.conversation(); }
};

std::string Counted(const Conversation& conversation) {
  return StrCat(conversation.size(), conversation.size() == 1 ? " message" : " messages");
}

Result<AfterCommand> Help(const Request& request);

Result<AfterCommand> Clear(const Request& request) {
  Conversation& conversation = request.conversation();
  const std::size_t kept = conversation.HasSystem() ? 1 : 0;
  conversation.Remove(kept, conversation.size());
  request.say = kept == 1 ? "the conversation is cleared; the system message stays"
                          : "the conversation is cleared";
  return AfterCommand::kReadOn;
}

// Returns an error if `name` cannot be the name of a file.
Status CheckFileName(std::string_view command, const std::string& name) {
  if (name.empty()) return InvalidArgument(StrCat(command, " needs the name of a file"));
  if (name.find('\0') == std::string::npos) return Status::Ok();
  return InvalidArgument(StrCat(command, ": the file's name ", Quoted(name), " has a NUL byte"));
}

Result<AfterCommand> Save(const Request& request) {
  KVCACHE_RETURN_IF_ERROR(CheckFileName("/save", request.argument));
  if (request.argument == "-") return InvalidArgument("/save -: a file of that name is ./-");
  KVCACHE_RETURN_IF_ERROR(SaveConversation(request.argument, request.conversation()));
  request.say = StrCat(Counted(request.conversation()), " saved to ", OneLine(request.argument));
  return AfterCommand::kReadOn;
}

Result<AfterCommand> Load(const Request& request) {
  KVCACHE_RETURN_IF_ERROR(CheckFileName("/load", request.argument));
  if (request.argument == "-") {
    return InvalidArgument(
        "/load -: standard input is read by the chat; a file of that name is ./-");
  }
  KVCACHE_RETURN_IF_ERROR(LoadConversation(request.argument, request.conversation()));
  request.say = StrCat(Counted(request.conversation()), " loaded from ", OneLine(request.argument));
  return AfterCommand::kReadOn;
}

Result<AfterCommand> Image(const Request& request) {
  KVCACHE_RETURN_IF_ERROR(CheckFileName("/image", request.argument));
  if (request.argument == "-") {
    return InvalidArgument(
        "/image -: standard input is read by the chat; a file of that name is ./-");
  }
  KVCACHE_RETURN_IF_ERROR(request.flags.pictures.UseLater(request.engine));
  KVCACHE_ASSIGN_OR_RETURN(PicturePtr picture, ReadPicture(request.engine, request.argument));
  request.say = StrCat(OneLine(request.argument), " goes with your next message, as ",
                       picture->cells(), " tokens");
  request.pictures.push_back(std::move(picture));
  return AfterCommand::kReadOn;
}

Result<AfterCommand> System(const Request& request) {
  Conversation& conversation = request.conversation();
  if (request.argument.empty()) {
    request.say =
        conversation.HasSystem() ? conversation.ContentText(0) : "there is no system message";
    return AfterCommand::kReadOn;
  }
  conversation.SetSystem(request.argument);
  request.say = "the system message is set";
  return AfterCommand::kReadOn;
}

// Returns 0 if `text` is no number.
std::int64_t ParseCount(std::string_view text) {
  return ParseNumber<std::int64_t>(text).value_or(0);
}

// Returns the index of the first user message at or after `at`; size() if there is none.
std::size_t NextUserMessage(const Conversation& conversation, std::size_t at) {
  while (at < conversation.size() && !conversation.HasRole(at, "user")) ++at;
  return at;
}

Result<AfterCommand> Forget(const Request& request) {
  const std::string& argument = request.argument;
  const std::int64_t count = argument.empty() ? 1 : ParseCount(argument);
  if (count < 1) {
    return InvalidArgument(
        StrCat("/forget takes a number of exchanges, 1 or more, not ", Quoted(argument)));
  }
  Conversation& conversation = request.conversation();
  const std::size_t first = conversation.HasSystem() ? 1 : 0;
  std::size_t last = NextUserMessage(conversation, first);
  std::int64_t forgotten = 0;
  for (; forgotten < count && last < conversation.size(); ++forgotten) {
    last = NextUserMessage(conversation, last + 1);
  }
  conversation.Remove(first, last);
  request.say = StrCat("the oldest ", forgotten, forgotten == 1 ? " exchange is" : " exchanges are",
                       " forgotten; left: ", Counted(conversation));
  return AfterCommand::kReadOn;
}

Result<AfterCommand> Retry(const Request& request) {
  const Conversation& conversation = request.conversation();
  const std::size_t answered = AnsweredMessages(conversation);
  if (answered == 0 || conversation.HasRole(answered - 1, "system")) {
    return InvalidArgument("there is no message to answer again");
  }
  ++request.flags.sampling.seed;  // the same seed would give the same answer
  return AfterCommand::kRetry;
}

// Returns the index of the user's message number `number`, from 1; size() if there is none.
std::size_t UserMessage(const Conversation& conversation, std::int64_t number) {
  std::size_t at = NextUserMessage(conversation, 0);
  for (; number > 1 && at < conversation.size(); --number) {
    at = NextUserMessage(conversation, at + 1);
  }
  return at;
}

Result<AfterCommand> Undo(const Request& request) {
  Conversation& conversation = request.conversation();
  std::size_t last = conversation.size();
  while (last > 0 && !conversation.HasRole(last - 1, "user")) --last;
  if (last == 0) return InvalidArgument("there is no message to take back");
  const std::size_t branch = request.branches.Keep(conversation);
  conversation.Remove(last - 1, conversation.size());
  request.say = StrCat("the last exchange is taken back; left: ", Counted(conversation),
                       ". /branches ", branch, " returns to what was before");
  return AfterCommand::kReadOn;
}

Result<AfterCommand> Edit(const Request& request) {
  const std::string_view argument = request.argument;
  const std::size_t blank = std::min(argument.find_first_of(kBlanks), argument.size());
  const std::size_t begin = argument.find_first_not_of(kBlanks, blank);
  const std::int64_t number = ParseCount(argument.substr(0, blank));
  if (number < 1 || begin == std::string_view::npos) {
    return InvalidArgument(
        "/edit needs the number of one of your messages, from 1, and its new text");
  }
  Conversation& conversation = request.conversation();
  const std::size_t at = UserMessage(conversation, number);
  if (at == conversation.size()) {
    return InvalidArgument(StrCat("/edit ", number, ": you have not written so many messages"));
  }
  const std::size_t branch = request.branches.Keep(conversation);
  conversation.Remove(at, conversation.size());
  conversation.Add("user", argument.substr(begin));
  request.say =
      StrCat("message ", number, " is replaced; /branches ", branch, " returns to what was before");
  return AfterCommand::kAnswer;
}

Result<AfterCommand> Fork(const Request& request) {
  if (request.conversation().empty())
    return InvalidArgument("there is no conversation to fork yet");
  request.say =
      StrCat("the conversation is kept as branch ", request.branches.Keep(request.conversation()),
             "; what you write now goes on here");
  return AfterCommand::kReadOn;
}

Result<AfterCommand> Branches(const Request& request) {
  ChatBranches& branches = request.branches;
  if (request.argument.empty()) {
    request.say = branches.size() == 0 ? "there are no branches; /fork, /undo and /edit make some"
                                       : StrCat(branches.List(), "\n/branches N goes to branch N");
    return AfterCommand::kReadOn;
  }
  const std::int64_t number = ParseCount(request.argument);
  if (number < 1 || number > static_cast<std::int64_t>(branches.size())) {
    return InvalidArgument(StrCat("/branches takes the number of a branch, 1 to ", branches.size(),
                                  ", not ", Quoted(request.argument)));
  }
  branches.Swap(static_cast<std::size_t>(number), request.conversation());
  request.say = StrCat("this is branch ", number, ", with ", Counted(request.conversation()),
                       "; the other conversation has its number now");
  return AfterCommand::kReadOn;
}

Result<AfterCommand> Tools(const Request& request) {
  request.say = request.tools.List();
  return AfterCommand::kReadOn;
}

Result<AfterCommand> Think(const Request& request) {
  if (request.argument != "on" && request.argument != "off") {
    return InvalidArgument(StrCat("/think takes on or off, not ", Quoted(request.argument)));
  }
  KVCACHE_RETURN_IF_ERROR(request.conversation().SetVariable(
      "enable_thinking", request.argument == "on" ? "true" : "false"));
  request.say = UnusedByTemplate(request.chat);
  if (!request.say.empty()) request.say.pop_back();
  return AfterCommand::kReadOn;
}

// A setting of /set. `set` returns false if the text is not a value of it.
struct Setting {
  std::string_view name;
  std::string_view rule;
  bool (*set)(std::string_view text, RunFlags& flags);
};

template <auto kMember>
bool SetSampling(std::string_view text, RunFlags& flags) {
  auto& value = flags.sampling.*kMember;
  const auto number = ParseNumber<std::remove_reference_t<decltype(value)>>(text);
  if (!number || !std::isfinite(static_cast<double>(*number))) return false;
  value = *number;
  return true;
}

bool SetMaxTokens(std::string_view text, RunFlags& flags) {
  flags.max_tokens = ParseNumber<std::int32_t>(text).value_or(-2);
  return flags.max_tokens >= -1;
}

constexpr Setting kSettings[] = {
    {"temp", "a number", SetSampling<&SamplingParams::temperature>},
    {"top-k", "a whole number", SetSampling<&SamplingParams::top_k>},
    {"top-p", "a number", SetSampling<&SamplingParams::top_p>},
    {"min-p", "a number", SetSampling<&SamplingParams::min_p>},
    {"repeat-penalty", "a number", SetSampling<&SamplingParams::repeat_penalty>},
    {"seed", "a whole number from 0 to 2^64 - 1", SetSampling<&SamplingParams::seed>},
    {"n", "a whole number of tokens from 0 to 2^31 - 1, or -1 for no limit", SetMaxTokens},
};

Result<AfterCommand> Set(const Request& request) {
  const std::string_view argument = request.argument;
  const std::size_t blank = argument.find_first_of(kBlanks);
  if (blank == std::string_view::npos) {
    return InvalidArgument(
        "/set needs a name and a number; the names are temp, top-k, top-p, min-p, repeat-penalty, "
        "seed and n");
  }
  const std::string_view name = argument.substr(0, blank);
  const std::string_view value = argument.substr(argument.find_first_not_of(kBlanks, blank));
  for (const Setting& setting : kSettings) {
    if (setting.name != name) continue;
    RunFlags changed = request.flags;
    if (!setting.set(value, changed)) {
      return InvalidArgument(
          StrCat("/set ", name, " takes ", setting.rule, ", not ", Quoted(value)));
    }
    KVCACHE_RETURN_IF_ERROR(changed.sampling.Check());
    request.flags = std::move(changed);
    return AfterCommand::kReadOn;
  }
  return InvalidArgument(
      StrCat("/set has no setting ", Quoted(name),
             "; the names are temp, top-k, top-p, min-p, repeat-penalty, seed and n"));
}

Result<AfterCommand> Quit(const Request&) {
  return AfterCommand::kQuit;
}

struct NamedCommand {
  std::string_view name;
  std::string_view argument;
  std::string_view help;  // empty: another name of a command above
  Result<AfterCommand> (*run)(const Request& request);
};

constexpr NamedCommand kCommands[] = {
    {"help", "", "this list", Help},
    {"clear", "", "clears the conversation, except the system message", Clear},
    {"forget", "[N]", "removes the oldest exchange, or the N oldest, from a full context", Forget},
    {"retry", "", "answers the last message again, with another seed", Retry},
    {"undo", "", "takes back your last message and its answer", Undo},
    {"edit", "N TEXT", "replaces your message number N and answers it", Edit},
    {"fork", "", "keeps the conversation as a branch and goes on", Fork},
    {"branches", "[N]", "lists the branches, or goes to branch N", Branches},
    {"image", "FILE", "a picture for your next message", Image},
    {"system", "[TEXT]", "sets the system message; without TEXT shows it", System},
    {"tools", "", "lists the tools of --mcp, and which run without a question", Tools},
    {"think", "on|off", "turns reasoning on or off, if the template has a switch for it", Think},
    {"set", "NAME N", "sets temp, top-k, top-p, min-p, repeat-penalty, seed or n", Set},
    {"save", "FILE", "writes the conversation to a file (JSON)", Save},
    {"load", "FILE", "loads a conversation from a file", Load},
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
      "\"\"\" begins and ends a message of several lines. A line that ends with \\ continues in "
      "the "
      "next.\n"
      "// begins a message with a slash. Ctrl-C ends an answer; twice at the prompt it ends the "
      "chat.";
  return AfterCommand::kReadOn;
}

}  // namespace

std::size_t AnsweredMessages(const Conversation& conversation) {
  std::size_t count = conversation.size();
  while (count > 0 && conversation.HasRole(count - 1, "assistant")) --count;
  return count;
}

bool IsCommand(std::string_view text) {
  return text.starts_with('/') && !text.starts_with("//");
}

Result<AfterCommand> RunCommand(std::string_view text, const ChatState& state, std::string& say) {
  text.remove_prefix(1);
  const std::size_t end = std::min(text.find_first_of(kBlanks), text.size());
  const std::string_view name = text.substr(0, end);
  const std::size_t begin = std::min(text.find_first_not_of(kBlanks, end), text.size());
  std::string argument(text.substr(begin));
  argument.resize(argument.find_last_not_of(kBlanks) + 1);
  for (const NamedCommand& command : kCommands) {
    if (command.name != name) continue;
    if (command.argument.empty() && !argument.empty()) {
      return InvalidArgument(StrCat("/", name, " takes no argument, not ", Quoted(argument)));
    }
    return command.run({state, std::move(argument), say});
  }
  return InvalidArgument(StrCat("there is no command ", Quoted(StrCat("/", name)),
                                "; /help lists the commands, // begins a message with a slash"));
}

}  // namespace kvcache::app
