// How conversations are written for a model: its own template, a built-in one, or one from a
// file; and the prompt's tokens.
//
//   the model's   `tokenizer.chat_template`, or with tools `tokenizer.chat_template.tool_use`
//   ChatML        built in: <|im_start|>role … <|im_end|>
//   plain         built in: contents as they are, for models that only continue text
//
// A model without a template gets ChatML if its vocabulary has the two markers, else plain.
//
// Tokens that the template's literals hold are structure to it (SpecialTokens::InLiterals): they
// come from the template alone, whatever their type.
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template/chat_template.h"
#include "kvcache/status.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {

class GgufFile;

enum class ChatFormatKind : std::uint8_t { kModel, kChatMl, kPlain, kGiven };

enum class ToolUse : std::uint8_t { kNone, kTools };

struct ChatPrompt {
  std::string text;
  std::vector<TextRange> foreign;  // the stretches that are not the template's
  MarkedTokens marked;  // with the begin-of-sequence token where the vocabulary wants one
};

class ChatFormat {
 public:
  // The model's own, or what stands in for it. Keeps the reference to the tokenizer. Errors:
  // those of ChatTemplate::Parse, with the key's name in front.
  static Result<ChatFormat> ForModel(const GgufFile& file, const Tokenizer& tokenizer,
                                     ToolUse tools);

  // "chatml" or "plain". kNotFound names those that there are.
  static Result<ChatFormat> BuiltIn(std::string_view name, const Tokenizer& tokenizer);

  // A template's text; `name` is for messages.
  static Result<ChatFormat> FromSource(std::string_view source, std::string name,
                                       const Tokenizer& tokenizer);

  ChatFormatKind kind() const { return kind_; }
  // "the model's template", "ChatML", … for people.
  const std::string& name() const { return name_; }
  bool Mentions(std::string_view variable) const { return template_.Mentions(variable); }

  // Texts that end an answer besides the vocabulary's tokens: ChatML's marker, where it is none.
  std::vector<std::string> Stops() const;

  // The prompt for `input`, whose bos and eos are filled in. Exactly one begin-of-sequence token
  // is in front where the vocabulary adds one, whether the template writes it or not.
  // Errors: those of ChatTemplate::Render, with the template's name in front.
  Result<ChatPrompt> Write(ChatInput input) const;

 private:
  ChatFormat(ChatFormatKind kind, std::string name, ChatTemplate parsed, const Tokenizer& tokenizer)
      : kind_(kind),
        name_(std::move(name)),
        template_(std::move(parsed)),
        tokenizer_(&tokenizer),
        in_literals_(tokenizer.InLiterals(template_.literals())) {}

  static Result<ChatFormat> Make(ChatFormatKind kind, std::string name, std::string_view source,
                                 const Tokenizer& tokenizer);

  ChatFormatKind kind_;
  std::string name_;
  ChatTemplate template_;
  const Tokenizer* tokenizer_;
  std::vector<std::int32_t> in_literals_;  // tokens that are structure to this template
};

}  // namespace kvcache
