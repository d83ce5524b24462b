// Renders a conversation as a prompt, and records which bytes the template wrote.
//
// Templates are Jinja, as in model files (GGUF's `tokenizer.chat_template`). The text equals, byte
// for byte, the output of Jinja with the settings of Hugging Face's transformers. A construct that
// is not supported is an error with its name, line and column. docs/design/chat-template.md lists
// the supported language.
//
// Every byte of the prompt is either the template's (its text, its strings, the begin- and
// end-of-sequence texts, the well-known role names) or foreign: contents, tool calls, tools,
// variables, and everything computed from them. Tokenizer::EncodeMarked makes structure tokens of
// the template's bytes only, so text that people, tools and models write never becomes one.
//
// Rendering is bounded in time, memory and depth, whatever the template does.
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "kvcache_engine/picture.h"
#include "tokenizer/special_tokens.h"

namespace kvcache {

namespace jinja {
struct ParsedTemplate;
}

enum class GenerationPrompt : std::uint8_t {
  kOmit,
  kAdd,           // the beginning of the assistant's answer
  kContinue,      // the last message stays open, and the answer continues it (ChatFormat only)
  kByLastMessage  // kContinue if the last message is a text of the assistant, else kAdd
};

struct ChatInput {
  // Objects with at least "role", in order, as in OpenAI's API: "content", "tool_calls",
  // "reasoning_content", … A template may read any key.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  // The tools that the model may call: an array of objects, or null for none.
  nlohmann::ordered_json tools = nullptr;
  // A template alone takes kByLastMessage for kAdd.
  GenerationPrompt generation_prompt = GenerationPrompt::kByLastMessage;
  // The pictures that parts {"type": "image"} of the messages stand for, in order (ChatFormat only), and what is around
  // one in a prompt.
  std::vector<PicturePtr> pictures{};
  PictureMarks picture_marks{};
  // More variables, such as {"enable_thinking": false}.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  std::string bos;  // the begin- and end-of-sequence tokens' texts
  std::string eos;
  // The time that strftime_now prints; the local time by default. Set it once per conversation, so
  // that its prompts share their beginnings and the cache can reuse them.
  std::optional<std::tm> now;
};

struct ChatText {
  std::string text;
  std::vector<TextRange> foreign;  // in order, none empty, none adjacent
};

// The limits of a rendering. A byte of produced text costs one unit of work, a step eight.
struct RenderLimits {
  // The work that every rendering may do, in addition to some units for each byte of its input:
  // about a second.
  std::uint64_t work = std::uint64_t{1} << 26;
  // After that work, a rendering continues until this time has passed. No honest prompt takes so
  // long: 1,000 rounds of tools take two seconds in the slowest of the published templates.
  double seconds = 30.0;
};

// The limits of a probe: many are made before a model is used.
inline constexpr RenderLimits kProbeLimits{.work = RenderLimits().work / 16, .seconds = 0.0};

class ChatTemplate {
 public:
  // Errors: kCorrupt: a syntax error; kUnsupported: an unsupported construct, a source that is too
  // large or nested too deep.
  static Result<ChatTemplate> Parse(std::string_view source);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Errors: kInvalidArgument: malformed messages, an error that the template raises
  // (raise_exception) or causes; kUnsupported: an unsupported construct, or a bound exceeded.
  Result<ChatText> Render(const ChatInput& input, const RenderLimits& limits) const;
  Result<ChatText> Render(const ChatInput& input) const { return Render(input, RenderLimits()); }

  // Returns whether the template reads a variable. A template that does not read "tools" ignores
  // tools.
  bool Mentions(std::string_view variable) const;

  // Returns the texts that the template may write, in the order of its source. Its text and the
  // strings that it prints are joined if nothing else is printed between them; all other strings
  // are separate.
  const std::vector<std::string>& literals() const;

 private:
  explicit ChatTemplate(std::unique_ptr<const jinja::ParsedTemplate> parsed);

  std::unique_ptr<const jinja::ParsedTemplate> parsed_;
};

}  // namespace kvcache
