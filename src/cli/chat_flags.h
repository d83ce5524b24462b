// The flags that say how a conversation is written, and what they come to.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "chat_template/chat_format.h"
#include "engine/engine.h"

namespace kvcache::cli {

struct ChatFlags {
  bool chat = false;     // even where standard input is no terminal
  bool raw = false;      // no template
  bool special = false;  // the prompt's special tokens count: a prompt of one's own making
  std::optional<std::string> system;
  std::string tools_file;
  std::string chat_template;  // chatml, plain or a file; empty: as the model says
  std::vector<std::string> variables;
  bool think = false;
  bool no_think = false;

  void Add(CLI::App& command);

  // Whether something was asked for that only a template can do.
  bool NeedTemplate() const {
    return !chat_template.empty() || system || !tools_file.empty() || think || no_think ||
           !variables.empty();
  }

  // The template that they or the model ask for. Errors name it, and what else can be given.
  Result<ChatFormat> Format(const Engine& engine) const;

  // The system message, tools and variables. Errors name the flag or the file.
  Status Fill(ChatInput& input) const;
};

// A warning for each part of the input that the template has no place for; they end with '\n'.
std::string Unheard(const ChatFormat& format, const ChatInput& input);

// "…; --chat-template chatml or FILE takes another template, --raw none" behind an error of the
// template.
Status WithAdvice(Status status);

}  // namespace kvcache::cli
