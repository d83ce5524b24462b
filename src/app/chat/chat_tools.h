// The tools of a chat: shows the calls of an answer, asks the person about them, runs them, and gives the results to the
// model.
//
//   answer with calls ─► show ─► ask, unless allowed ─► run ─► show ─► conversation ─► next answer
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "app/flags/run_flags.h"
#include "app/mcp/tool_box.h"
#include "app/terminal/line_editor.h"
#include "app/terminal/terminal.h"
#include "kvcache_engine/chat.h"

namespace kvcache::app {

struct ToolResult {
  ChatCall call;
  std::string text{};  // that the model reads
  bool is_error = false;
};

class ChatTools {
 public:
  // Starts the servers of --mcp, if it is given; else Run only shows calls. Errors: the model calls no tools; those of
  // ToolBox::Open; --mcp-allow names no tool; kCancelled: Ctrl-C.
  static Result<ChatTools> Open(const RunFlags& flags, const Chat& chat);

  // Offers the tools to the model, where --mcp is given. To be called before each answer: other commands change the
  // conversation.
  void OfferTo(Conversation& conversation) const;

  // Runs the calls of the answer number `round` to one message, from 1, and adds a result for each to the
  // conversation. Questions are asked with `editor`; without one, calls that are not allowed are refused. Returns whether
  // the model is to answer again: not after Ctrl-C, which refuses all calls that are left, and not after
  // kMaxRounds rounds.
  bool Run(const ChatTurn& turn, int round, Engine& engine, Conversation& conversation,
           LineEditor* editor);

  static constexpr int kMaxRounds = 50;

  // Returns whether there are tools, and a terminal to ask on.
  bool MayAsk() const { return box_ != nullptr && StdinIsTerminal() && StderrIsTerminal(); }
  // Returns why the last Run refused calls, if it did.
  const std::string& refusal() const { return refusal_; }
  // Returns the results of the last Run.
  const std::vector<ToolResult>& results() const { return results_; }
  // Returns a line for each tool: its name, whether it is allowed, and what it does.
  std::string List() const;

 private:
  enum class Permission : std::uint8_t { kGiven, kRefused, kNobodyToAsk, kStop };

  bool RunOne(const ChatCall& call, ToolResult& result, LineEditor* editor);
  Permission Ask(ToolBox::Tool& tool, LineEditor* editor);
  static bool RunTool(const ToolBox::Tool& tool, const nlohmann::ordered_json& arguments,
                      ToolResult& result);
  std::string Names() const;

  std::unique_ptr<ToolBox> box_;  // null without --mcp
  std::string offered_;           // the tools, as templates read them
  bool shows_ = true;             // calls and results
  std::set<std::string> noted_;   // tools that a note says are refused
  std::string refusal_;
  std::vector<ToolResult> results_;
};

// Adds the results of an answer's calls to the object that --json prints (AnswerJson).
void AddResultsJson(const std::vector<ToolResult>& results, nlohmann::json& report);

}  // namespace kvcache::app
