// The flags of `kvcache run` that choose the chat template and fill the conversation.
//
// Thread safety: values and free functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/flags/command_line.h"
#include "dialect/model_dialect.h"
#include "kvcache_engine/chat.h"
#include "kvcache_engine/conversation.h"
#include "kvcache_engine/engine.h"
#include "model_store/stored_model.h"

namespace kvcache::app {

struct ChatFlags {
  bool chat = false;     // chats even if standard input is no terminal
  bool raw = false;      // uses no template
  bool special = false;  // with raw: special tokens in the prompt's text are those tokens
  std::optional<std::string> system;
  std::string tools_file;
  std::string mcp_file;                  // the MCP servers to start
  std::vector<std::string> mcp_allowed;  // their tools that run without a question
  std::string chat_template;             // chatml, plain or a file; empty: the model's own
  std::string dialect;                   // a name; empty: what the template says
  std::vector<std::string> variables;
  bool think = false;
  bool no_think = false;
  // A stored model's own; without flags. Declared by no flag.
  std::optional<std::string> stored_template;
  std::vector<StoredMessage> stored_messages;

  // Declares the flags. REQUIRES: `command` has --prompt and --file, and is parsed while this
  // lives.
  void Add(FlagSet command);

  // Returns whether a flag was given that has an effect only in a template.
  bool NeedTemplate() const {
    return !chat_template.empty() || stored_template || !stored_messages.empty() || system ||
           !tools_file.empty() || !mcp_file.empty() || !dialect.empty() || think || no_think ||
           !variables.empty();
  }

  // Returns the dialect and the templates that the flags or the model choose. Errors name the template, and what
  // --chat-template takes; an unknown dialect, with all names.
  Result<ModelDialect> Dialect(const Engine& engine) const;

  // Adds the system message, tools and variables. Errors name the flag or the file.
  Status Fill(Conversation& conversation) const;

 private:
  Result<ChatFormat> Format(const Engine& engine, ToolUse tools) const;
};

// Returns a warning, ended by '\n', for the tools if the model cannot have them, and for each variable
// that the template never reads.
std::string UnusedByTemplate(const Chat& chat);

// Appends to an error of the template: how to use another template, or none.
Status AdviseOnTemplate(Status status);

}  // namespace kvcache::app
