// Writes conversations as prompts for a model, by its own template, a built-in one, or one from a
// file, and encodes the prompts.
//
//   the model's   `tokenizer.chat_template`, or with tools `tokenizer.chat_template.tool_use`
//   ChatML        built in: <|im_start|>role … <|im_end|>
//   plain         built in: the contents alone, for models that only continue text
//
// A model without a template gets ChatML if its vocabulary has the two markers, else plain.
//
// System messages may stand anywhere: system_messages.h. A last message of the assistant is continued:
// open_message.h.
//
// Tokens in the template's literals are structure to it (SpecialTokens::InLiterals): only the
// template produces them, whatever their type.
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template/chat_template.h"
#include "chat_template/open_message.h"
#include "chat_template/system_messages.h"
#include "kvcache/status.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {

class GgufFile;

enum class ChatFormatKind : std::uint8_t { kModel, kChatMl, kPlain, kGiven };

enum class ToolUse : std::uint8_t { kNone, kTools };

struct ChatPrompt {
  std::string text;
  std::vector<TextRange> foreign;         // ranges that the template did not write
  std::vector<PromptPicture> pictures{};  // whose ids are among the tokens; `text` has their names
  MarkedTokens marked;              // with a begin-of-sequence token if the vocabulary adds one
  OpenPart open = OpenPart::kNone;  // of the last message, which the answer continues
  std::string open_text{};          // its content, if that is continued
};

class ChatFormat {
 public:
  // Returns the model's own template, or its replacement (above). `tokenizer` must outlive the
  // result. Errors: those of ChatTemplate::Parse, with the key's name in front.
  static Result<ChatFormat> ForModel(const GgufFile& file, const Tokenizer& tokenizer,
                                     ToolUse tools);

  // Returns the built-in template "chatml" or "plain". Errors: kNotFound: another name; the message
  // lists both.
  static Result<ChatFormat> BuiltIn(std::string_view name, const Tokenizer& tokenizer);

  // Parses `source`; `name` is used in messages.
  static Result<ChatFormat> FromSource(std::string_view source, std::string name,
                                       const Tokenizer& tokenizer);

  ChatFormatKind kind() const { return kind_; }
  // Returns "the model's template", "ChatML", … for display.
  const std::string& name() const { return name_; }
  bool Mentions(std::string_view variable) const { return template_.Mentions(variable); }
  // Returns whether one of the template's literals contains `text`.
  bool Writes(std::string_view text) const;

  // Returns texts that end an answer in addition to tokens: ChatML's end marker if it is not a
  // token.
  std::vector<std::string> Stops() const;

  // Returns the text of a short conversation, to find out what the template does. One that takes long is an error.
  Result<std::string> Probe(ChatInput input) const;

  // Renders and encodes the prompt; sets input.bos and input.eos itself. If the vocabulary adds a
  // begin-of-sequence token, exactly one is in front, whether or not the template writes it.
  // Errors: those of ChatTemplate::Render, with the template's name in front.
  // `thoughts`: how the model writes them.
  Result<ChatPrompt> Write(ChatInput input,
                           const ThoughtSyntax& thoughts = {"<think>", "</think>"}) const;

 private:
  ChatFormat(ChatFormatKind kind, std::string name, ChatTemplate parsed, const Tokenizer& tokenizer)
      : kind_(kind),
        name_(std::move(name)),
        template_(std::move(parsed)),
        places_(FindSystemPlaces(template_)),
        tokenizer_(&tokenizer),
        in_literals_(tokenizer.InLiterals(template_.literals())) {}

  // Sets bos and eos, and puts system messages where the template takes them.
  void Prepare(ChatInput& input) const;
  static Result<ChatFormat> Make(ChatFormatKind kind, std::string name, std::string_view source,
                                 const Tokenizer& tokenizer);

  ChatFormatKind kind_;
  std::string name_;
  ChatTemplate template_;
  SystemPlaces places_;
  const Tokenizer* tokenizer_;
  std::vector<std::int32_t> in_literals_;  // tokens that are structure to this template
};

}  // namespace kvcache
