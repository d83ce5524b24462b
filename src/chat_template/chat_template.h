// A chat template: conversation in, prompt out, with marks on what was not the template's.
//
// Templates are Jinja, as models bring them along (GGUF's `tokenizer.chat_template`). The text
// is equal, byte for byte, to what Jinja gives with the settings of Hugging Face's
// transformers; what of Jinja is not offered is an error that names it, with line and column.
// docs/design/chat-template.md says what is offered.
//
// Every byte of the prompt is either the template's (its text, its strings, the begin- and
// end-of-sequence texts, the roles by their usual names) or foreign: contents, tool calls,
// tools, variables, and whatever is computed from them. Tokenizer::EncodeMarked makes structure
// tokens of the template's bytes alone, so what people, tools and models write never becomes one.
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
#include "tokenizer/special_tokens.h"

namespace kvcache {

namespace jinja {
struct ParsedTemplate;
}

enum class GenerationPrompt : std::uint8_t {
  kOmit,
  kAdd,  // the beginning of the assistant's answer
};

struct ChatInput {
  // Objects with at least "role", in order, as OpenAI's interface has them: "content",
  // "tool_calls", "reasoning_content", … whatever the template reads.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  // What the model may call: an array of objects, or null for none.
  nlohmann::ordered_json tools = nullptr;
  GenerationPrompt generation_prompt = GenerationPrompt::kAdd;
  // More variables, such as {"enable_thinking": false}.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  std::string bos;  // the begin- and end-of-sequence tokens' texts
  std::string eos;
  // What strftime_now shows; the local time where it is not given. One time for a whole
  // conversation keeps its prompts equal, and so what was computed for them.
  std::optional<std::tm> now;
};

struct ChatText {
  std::string text;
  std::vector<TextRange> foreign;  // in order, none empty, none adjacent
};

// The work that a rendering may do, in units, in addition to some units for each byte of its input.
// A byte of produced text is one unit, a step eight. This is about a second.
inline constexpr std::uint64_t kDefaultTemplateWork = std::uint64_t{1} << 26;

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
  Result<ChatText> Render(const ChatInput& input, std::uint64_t work = kDefaultTemplateWork) const;

  // Whether the template reads a variable. A template that does not read "tools" ignores tools.
  bool Mentions(std::string_view variable) const;

  // Returns the texts that the template may write, in the order of its source: its text and the
  // strings that it prints, joined if nothing else is printed between them; other strings singly.
  const std::vector<std::string>& literals() const;

 private:
  explicit ChatTemplate(std::unique_ptr<const jinja::ParsedTemplate> parsed);

  std::unique_ptr<const jinja::ParsedTemplate> parsed_;
};

}  // namespace kvcache
