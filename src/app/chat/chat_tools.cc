#include "app/chat/chat_tools.h"

#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/chat/call_display.h"
#include "app/terminal/notes.h"
#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "engine/engine_impl.h"
#include "json/json_text.h"

namespace kvcache::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxResultBytes = 100'000;
constexpr std::size_t kMaxAboutBytes = 100;

// Returns the part of a result that the model reads: 100,000 bytes at most, and its share of half of the context.
std::string FitResult(std::string_view text, std::size_t results, const Engine& engine) {
  const std::size_t max_tokens = static_cast<std::size_t>(engine.context() / 2) / results;
  std::string_view kept = BeginningOf(text, kMaxResultBytes);
  for (;;) {
    const auto tokens = engine.tokenizer().Encode(kept);
    if (!tokens.ok() || tokens->size() <= max_tokens) break;
    kept = BeginningOf(kept, kept.size() * max_tokens / tokens->size());
  }
  if (kept.size() == text.size()) return std::string(text);
  return StrCat(kept, "\n[", text.size() - kept.size(), " more bytes are left out]");
}

// Returns the arguments of a call as an object. Errors are for the model.
Result<Json> ArgumentsOf(const ChatCall& call, const Json& schema) {
  auto arguments =
      call.arguments.empty() ? Result<Json>(Json::object()) : ParseJson(call.arguments);
  if (!arguments.ok()) {
    return std::move(arguments).TakeStatus().WithContext("the arguments cannot be read");
  }
  if (!arguments->is_object()) return InvalidArgument("the arguments must be an object");
  const Json required = schema.value("required", Json());
  for (const Json& key : required.is_array() ? required : Json::array()) {
    if (!key.is_string() || arguments->contains(key.get<std::string>())) continue;
    return InvalidArgument(StrCat("the argument ", key.dump(), " is missing"));
  }
  return arguments;
}

void SetError(ToolResult& result, std::string_view text) {
  result.is_error = true;
  result.text = StrCat("error: ", text);
}

}  // namespace

Result<ChatTools> ChatTools::Open(const RunFlags& flags, const Chat& chat) {
  ChatTools tools;
  tools.shows_ = !flags.json;
  if (flags.chat.mcp_file.empty()) return tools;
  if (!chat.calls_tools()) {
    return Unsupported(StrCat("--mcp: the model's dialect ", Quoted(chat.dialect_name()),
                              " has no calls of tools; --dialect NAME chooses another"));
  }
  (void)CatchInterrupt();
  Progress progress;
  progress.Show("the MCP servers start");
  KVCACHE_ASSIGN_OR_RETURN(tools.box_, ToolBox::Open(flags.chat.mcp_file));
  progress.Clear();
  for (const std::string& name : flags.chat.mcp_allowed) {
    if (tools.box_->Allow(name)) continue;
    return InvalidArgument(
        StrCat("--mcp-allow: there is no tool ", Quoted(name), "; the tools are ", tools.Names()));
  }
  tools.offered_ = tools.box_->Describe().dump(-1, ' ', false, Json::error_handler_t::replace);
  KVCACHE_RETURN_IF_ERROR(
      Conversation().SetTools(tools.offered_).WithContext("the tools of --mcp"));
  return tools;
}

void ChatTools::OfferTo(Conversation& conversation) const {
  if (box_ != nullptr) (void)conversation.SetTools(offered_);
}

bool ChatTools::Run(const ChatTurn& turn, int round, Engine& engine, Conversation& conversation,
                    LineEditor* editor) {
  results_.clear();
  refusal_.clear();
  if (box_ == nullptr) {
    for (const ChatCall& call : turn.calls) {
      if (shows_) ShowCall(call, CallDetail::kShort);
    }
    return false;
  }
  if (turn.calls.empty()) return false;
  if (turn.result.stop == StopReason::kInterrupted) refusal_ = "the person ended the answer";
  if (turn.context_full) refusal_ = "the context is full";
  if (round > kMaxRounds) refusal_ = StrCat("there were ", kMaxRounds, " rounds of calls");
  // A limit may also cut a call off before its arguments begin.
  const StopReason stop = turn.result.stop;
  const bool cut = stop == StopReason::kLength || stop == StopReason::kStopString;
  for (const ChatCall& each : turn.calls) {
    ChatCall call = each;
    const bool may_be_cut = cut && &each == &turn.calls.back() && turn.result.text.empty();
    if (may_be_cut && call.arguments == "{}") call.complete = false;
    ToolResult result{.call = call};
    if (!refusal_.empty()) {
      if (shows_) ShowCall(call, CallDetail::kShort);
      SetError(result, StrCat("the call did not run: ", refusal_));
    } else if (!RunOne(call, result, editor)) {
      refusal_ = "the person ended the calls";
    }
    result.text = FitResult(result.text, turn.calls.size(), engine);
    if (shows_) ShowResult(result.text);
    conversation.AddToolResult(call.id, call.name, result.text);
    results_.push_back(std::move(result));
  }
  return refusal_.empty();
}

// Returns false after Ctrl-C.
bool ChatTools::RunOne(const ChatCall& call, ToolResult& result, LineEditor* editor) {
  ToolBox::Tool* const tool = box_->Find(call.name);
  const bool asks = tool != nullptr && !tool->allowed && editor != nullptr;
  if (shows_ || asks) ShowCall(call, asks ? CallDetail::kWhole : CallDetail::kShort);
  if (tool == nullptr) {
    SetError(result, StrCat("there is no such tool; the tools are ", Names()));
    return true;
  }
  if (!call.complete) {
    SetError(result, "the call did not run: its arguments end early, or are no JSON object");
    return true;
  }
  auto arguments = ArgumentsOf(call, ToolBox::Own(*tool).parameters);
  if (!arguments.ok()) {
    SetError(result, arguments.status().message());
    return true;
  }
  switch (Ask(*tool, editor)) {
    case Permission::kGiven: return RunTool(*tool, *arguments, result);
    case Permission::kRefused: SetError(result, "the person refused the call"); return true;
    case Permission::kNobodyToAsk: SetError(result, "nobody can allow the call"); return true;
    case Permission::kStop: break;
  }
  SetError(result, "the person refused the call");
  return false;
}

ChatTools::Permission ChatTools::Ask(ToolBox::Tool& tool, LineEditor* editor) {
  if (Interrupted()) return Permission::kStop;
  if (tool.allowed) return Permission::kGiven;
  if (editor == nullptr) {
    if (noted_.insert(tool.name).second) {
      AddNote(StrCat("the tool ", Quoted(tool.name),
                     " is refused, because there is no terminal to ask on; --mcp-allow ", tool.name,
                     " allows it"));
    }
    return Permission::kNobodyToAsk;
  }
  // A key that was pressed before the question is no answer to it.
  editor->DropTypedAhead();
  (void)tcflush(STDIN_FILENO, TCIFLUSH);
  for (;;) {
    TypedLine line;
    if (editor->Read("run it? y: yes, a: always, n: no, then Enter: ", line) != LineEnd::kLine) {
      return Permission::kStop;
    }
    if (line.has_paste) continue;
    std::string word = line.text;
    std::transform(word.begin(), word.end(), word.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (word == "n" || word == "no") return Permission::kRefused;
    tool.allowed = word == "a" || word == "always";
    if (tool.allowed || word == "y" || word == "yes") return Permission::kGiven;
  }
}

// Returns false after Ctrl-C.
bool ChatTools::RunTool(const ToolBox::Tool& tool, const Json& arguments, ToolResult& result) {
  Progress progress;
  progress.Show(StrCat(tool.name, " runs"));
  auto answer = ToolBox::Call(tool, arguments);
  progress.Clear();
  if (answer.ok()) {
    result.is_error = answer->is_error;
    result.text = answer->is_error ? StrCat("error: ", answer->text) : std::move(answer->text);
    return true;
  }
  const bool interrupted = answer.status().code() == StatusCode::kCancelled;
  SetError(result, interrupted ? "the person ended the call" : answer.status().message());
  return !interrupted;
}

std::string ChatTools::Names() const {
  std::string names;
  for (const ToolBox::Tool& tool : box_->tools()) {
    names += StrCat(names.empty() ? "" : ", ", tool.name);
  }
  return names.empty() ? "none" : names;
}

std::string ChatTools::List() const {
  if (box_ == nullptr) return "this chat runs no tools; --mcp FILE starts servers that have some";
  if (box_->tools().empty()) return "the MCP servers have no tools";
  std::string list;
  for (const ToolBox::Tool& tool : box_->tools()) {
    const std::string about = OneLine(ToolBox::Own(tool).description);
    const std::string_view shown = BeginningOf(about, kMaxAboutBytes);
    list += StrCat(list.empty() ? "" : "\n", tool.name, tool.allowed ? "  allowed  " : "  asks  ",
                   shown, shown.size() < about.size() ? "…" : "");
  }
  return list;
}

void AddResultsJson(const std::vector<ToolResult>& results, nlohmann::json& report) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    nlohmann::json& call = report["calls"][i];
    call["result"] = results[i].text;
    call["is_error"] = results[i].is_error;
  }
}

}  // namespace kvcache::app
