// A model's dialect beside the templates that write its prompts.
//
//   conversation ─► calls and results are completed ─► ids, arguments and thoughts are what the template reads ─►
//   the prompt, and what is known of its answer (AnswerParser)
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template/chat_format.h"
#include "dialect/answer_part.h"
#include "dialect/call_history.h"
#include "dialect/recognise.h"
#include "kvcache/status.h"

namespace kvcache {

// A prompt, and what is known of its answer.
struct DialectPrompt {
  ChatPrompt written{};
  AnswerSyntax answer{};
};

class ModelDialect {
 public:
  // Makes the template that writes prompts, without and with tools.
  using MakeFormat = std::function<Result<ChatFormat>(ToolUse)>;

  // `dialect`: its name; empty: what the template says. `tokenizer` is the templates' own, and must outlive the result.
  // Errors: those of `make_format`; kInvalidArgument: an unknown name; the message lists all.
  static Result<ModelDialect> Make(const MakeFormat& make_format, const Tokenizer& tokenizer,
                                   std::string_view dialect = {});
  // Errors: those of ChatFormat::Write.
  Result<DialectPrompt> Write(ChatInput input) const;

  // The dialect, with edges where its markers are control tokens.
  const SharedDialect& dialect() const { return dialect_; }
  // The marks of thoughts, as the template writes them.
  const ThoughtSyntax& thoughts() const { return thoughts_; }
  // Returns whether answers may begin with thoughts.
  bool reasons() const { return reasons_; }
  // Returns texts that end an answer in addition to tokens.
  std::vector<std::string> Stops() const { return format_.Stops(); }
  // Returns the template that writes a conversation with these tools; null: none.
  const ChatFormat& format(const nlohmann::ordered_json& tools) const {
    return tools.is_null() ? format_ : tool_format_;
  }

 private:
  ModelDialect(ChatFormat format, ChatFormat tool_format, Recognition known,
               const Tokenizer& tokenizer);

  AnswerSyntax SyntaxOf(const ChatInput& input) const;

  ChatFormat format_;
  ChatFormat tool_format_;
  ThoughtSyntax thoughts_;
  HistoryForm history_;
  SharedDialect dialect_;
  IdForm id_form_;
  bool reasons_;
  bool thinks_unasked_;
};

// Adds tools of a conversation to what the parser of an answer knows. What is no tool is skipped.
void AddOffered(const nlohmann::ordered_json& tools, AnswerSyntax& answer);

}  // namespace kvcache
