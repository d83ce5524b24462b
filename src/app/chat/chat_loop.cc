#include "app/chat/chat_loop.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "app/chat/answer_report.h"
#include "app/chat/answer_view.h"
#include "app/chat/chat_commands.h"
#include "app/chat/chat_tools.h"
#include "app/chat/context_fit.h"
#include "app/chat/message_reader.h"
#include "app/commands/json_report.h"
#include "app/terminal/notes.h"
#include "app/terminal/paste_mode.h"
#include "app/terminal/shown_text.h"
#include "base/errors.h"
#include "base/strings.h"
#include "kvcache_engine/chat.h"

namespace kvcache::app {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

constexpr const char* kMakeRoom =
    "/forget removes the oldest exchange, /clear removes all; --ctx N gives a larger context";

// Everything except answers goes to standard error.
void Say(const std::string& text) {
  if (!text.empty()) (void)std::fprintf(stderr, "%s\n", Shown(text).c_str());
}

std::string Welcome(const Chat& chat) {
  const ChatFormat& format = chat.format();
  if (format.kind() == ChatFormatKind::kPlain) {
    return "This model has no chat template: it continues your text, like a story. /help lists the "
           "commands.";
  }
  if (format.kind() == ChatFormatKind::kChatMl) {
    return "Chat in the built-in format ChatML. /help lists the commands.";
  }
  return StrCat("Chat with ", format.name(), ". /help lists the commands.");
}

class ChatLoop {
 public:
  ChatLoop(Engine& engine, const RunFlags& flags, ModelDialect dialect, double load_ms,
           std::int64_t kept_tokens)
      : engine_(engine),
        flags_(flags),
        chat_(engine, std::move(dialect)),
        load_ms_(load_ms),
        on_terminal_(StdinIsTerminal()),
        lines_(MakeLineEditor()) {
    chat_.LimitKept(kept_tokens);
  }

  Status Run() {
    KVCACHE_RETURN_IF_ERROR(flags_.chat.Fill(chat_.conversation()));
    KVCACHE_ASSIGN_OR_RETURN(pictures_, flags_.pictures.Read(engine_));
    KVCACHE_ASSIGN_OR_RETURN(tools_, ChatTools::Open(flags_, chat_));
    tools_.OfferTo(chat_.conversation());
    ShowNotes();
    Say(UnusedByTemplate(chat_));
    if (on_terminal_) Say(Welcome(chat_));
    for (;;) {
      ForgetInterrupt();
      Message message = ReadMessage(*lines_);
      if (message.end == LineEnd::kInterrupted) {
        if (Terminated() || LeavesAfterInterrupt()) return Status::Ok();
        continue;
      }
      interrupts_ = 0;
      if (message.end == LineEnd::kEndOfInput) {
        if (on_terminal_) Say(" ");
        return Status::Ok();
      }
      Status status = Take(std::move(message));
      if (quit_) return status;
      if (status.ok()) continue;
      if (!on_terminal_) return status;
      Say(OneLine(status.message()));
    }
  }

 private:
  // Returns whether this is the second Ctrl-C in a row at the prompt.
  bool LeavesAfterInterrupt() {
    if (++interrupts_ >= 2) {
      Say("");
      return true;
    }
    Say("\nCtrl-C again or Ctrl-D ends the chat");
    return false;
  }

  Status Take(Message message) {
    if (message.end == LineEnd::kTooLong) {
      return InvalidArgument(StrCat("the message has more than ", HumanBytes(kMaxTextBytes),
                                    ", which is the most that is read"));
    }
    std::string text = std::move(message.text);
    if (text.find_first_not_of(kSpaces) == std::string::npos) return Status::Ok();
    if (!message.is_verbatim && IsCommand(text)) return Command(text);
    if (!message.is_verbatim && text.starts_with("//")) text.erase(0, 1);
    Status fits = CheckBytesFit(engine_, text);
    if (!fits.ok()) return {fits.code(), StrCat("the message ", fits.message())};
    chat_.conversation().Add("user", text, std::exchange(pictures_, {}));
    return Answer();
  }

  Status Command(const std::string& text) {
    std::string say;
    KVCACHE_ASSIGN_OR_RETURN(
        const AfterCommand after,
        RunCommand(text, {engine_, chat_, branches_, tools_, flags_, pictures_}, say));
    Say(say);
    quit_ = after == AfterCommand::kQuit;
    if (after == AfterCommand::kAnswer) return Answer();
    return after == AfterCommand::kRetry ? Retry() : Status::Ok();
  }

  // The old answer returns if no new one begins.
  Status Retry() {
    Conversation& conversation = chat_.conversation();
    return Answer(conversation.CutTail(AnsweredMessages(conversation)));
  }

  // Undoes what led to an answer that did not come: restores the answer that /retry took away, or
  // removes the message that was typed.
  void Undo(std::optional<Conversation> old_answer) {
    Conversation& conversation = chat_.conversation();
    if (old_answer) return conversation.Append(std::move(*old_answer));
    conversation.Remove(conversation.size() - 1, conversation.size());
  }

  // Answers until an answer has no calls.
  Status Answer(std::optional<Conversation> old_answer = std::nullopt) {
    LineEditor* const editor = tools_.MayAsk() ? lines_.get() : nullptr;
    for (int round = 1; !quit_; ++round) {
      tools_.OfferTo(chat_.conversation());
      KVCACHE_ASSIGN_OR_RETURN(const ChatTurn turn,
                               AnswerOnce(std::exchange(old_answer, std::nullopt), round));
      const bool goes_on = tools_.Run(turn, round, engine_, chat_.conversation(), editor);
      if (flags_.json) ReportJson(turn);
      if (!goes_on) break;
    }
    return Status::Ok();
  }

  Result<ChatTurn> AnswerOnce(std::optional<Conversation> old_answer, int round) {
    const bool is_retry = old_answer.has_value();
    const PasteMode paste_mode;  // keeps the marks of a paste that the next line will read
    Progress progress;
    AnswerView view(progress, AnswerBegin::kWithoutSpaces);
    GenerateRequest request = flags_.MakeRequest(progress, 0);
    ChatHandlers handlers;
    if (!flags_.json) view.Watch(request, handlers);
    auto turn = chat_.Answer(std::move(request), std::move(handlers));
    view.End();
    if (!turn.ok()) {
      if (round == 1) Undo(std::move(old_answer));
      Status status = std::move(turn).TakeStatus();
      if (status.code() == StatusCode::kUnsupported) return AdviseOnTemplate(std::move(status));
      if (status.code() != StatusCode::kCacheFull) return status;
      return Status(status.code(), StrCat(status.message(), "; ", kMakeRoom));
    }
    Report(*turn);
    if (turn->result.stop == StopReason::kInterrupted) lines_->DropTypedAhead();
    const bool nothing =
        turn->result.stop == StopReason::kInterrupted && turn->result.tokens.empty();
    if (nothing && round == 1) Undo(std::move(old_answer));
    if (nothing) {
      Say(StrCat("interrupted before the answer began; ",
                 round > 1  ? "the results of the tools stay, and /retry answers them"
                 : is_retry ? "the conversation is unchanged"
                            : "the message is removed",
                 ", the cache keeps what was read"));
    }
    return turn;
  }

  void ReportJson(const ChatTurn& turn) {
    nlohmann::json report = AnswerJson(engine_, flags_, turn, std::exchange(load_ms_, 0.0));
    AddResultsJson(tools_.results(), report);
    PrintJson(report);
  }

  void Report(const ChatTurn& turn) {
    if (!flags_.json && (turn.calls.empty() || !turn.result.text.empty())) {
      (void)std::fputc('\n', stdout);
      quit_ = std::fflush(stdout) != 0;
    }
    if (StderrIsTerminal()) {
      const bool stopped = turn.result.stop == StopReason::kInterrupted;
      Say(AnswerSummary(turn) + (stopped ? " · stopped\n" : "\n"));
    }
    if (turn.context_full) {
      Say(StrCat("the context of ", engine_.context(), " tokens is full, and the answer ended; ",
                 kMakeRoom));
    }
  }

  Engine& engine_;
  RunFlags flags_;
  Chat chat_;
  ChatBranches branches_;
  ChatTools tools_;
  std::vector<PicturePtr> pictures_;  // of the next message
  double load_ms_;
  const bool on_terminal_;
  std::unique_ptr<LineEditor> lines_;
  int interrupts_ = 0;
  bool quit_ = false;
};

}  // namespace

Status RunChat(Engine& engine, const RunFlags& flags, double load_ms) {
  if (engine.has_encoder()) {
    return Unsupported(
        "a model with an encoder answers one text and does not chat: give it one with -p");
  }
  auto dialect = flags.chat.Dialect(engine);
  if (!dialect.ok()) return AdviseOnTemplate(std::move(dialect).TakeStatus());
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t kept, flags.store.TokensBesideContext(engine));
  Status status = ChatLoop(engine, flags, std::move(dialect).value(), load_ms, kept).Run();
  StoreFlags::Finish(engine);
  return status;
}

}  // namespace kvcache::app
