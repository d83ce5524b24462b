#include "chat_template/open_message.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/errors.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSpaces = " \r\n\t";
// The keys under which templates look for thoughts.
constexpr const char* kThoughtsKeys[] = {"reasoning_content", "thinking", "reasoning", "thought",
                                         "tool_plan"};

// Templates trim spaces and line breaks, so the mark is a word. Only its last place counts.
constexpr std::string_view kMark = "zqopenzq";

Status Wrong(const char* message) {
  return InvalidArgument(message);
}

std::string TextOf(const Json& message, const char* key) {
  const auto found = message.find(key);
  return found != message.end() && found->is_string() ? found->get<std::string>() : "";
}

// Returns the thoughts of a message.
std::string ThoughtsOf(const Json& message) {
  for (const char* const key : kThoughtsKeys) {
    std::string text = TextOf(message, key);
    if (!text.empty()) return text;
  }
  return {};
}

bool HasCalls(const Json& message) {
  const auto found = message.find("tool_calls");
  return found != message.end() && !found->is_null() && !found->empty();
}

bool IsAnswer(const Json& message) {
  return message.is_object() && message.value("role", Json()) == "assistant";
}

// Returns whether a content is thoughts that have not ended.
bool BeginsThoughts(const std::string& content, const ThoughtSyntax& thoughts) {
  const std::size_t begin = content.find_first_not_of(kSpaces);
  const std::string& mark = thoughts.begin;
  return begin != std::string::npos && !mark.empty() &&
         content.compare(begin, mark.size(), mark) == 0 &&
         content.find(thoughts.end) == std::string::npos;
}

// Moves thoughts that were begun in the content to their key.
void SplitThoughts(Json& message, const ThoughtSyntax& thoughts) {
  const std::string content = TextOf(message, "content");
  if (!BeginsThoughts(content, thoughts)) return;
  const std::size_t tag = content.find(thoughts.begin) + thoughts.begin.size();
  const std::size_t begin = content.find_first_not_of(kSpaces, tag);
  message[kThoughtsKeys[0]] = begin == std::string::npos ? "" : content.substr(begin);
  message["content"] = "";
}

// Returns the part of a message that is continued; kNone: it says nothing.
OpenPart PartOf(const Json& message, const ThoughtSyntax& thoughts) {
  const std::string content = TextOf(message, "content");
  const bool none = ThoughtsOf(message).empty();
  if (content.empty()) return none ? OpenPart::kNone : OpenPart::kThoughts;
  const bool begins = IsAnswer(message) && none && BeginsThoughts(content, thoughts);
  return begins ? OpenPart::kThoughts : OpenPart::kText;
}

void CutAt(std::size_t size, ChatText& text) {
  text.text.resize(size);
  while (!text.foreign.empty() && text.foreign.back().begin >= size) text.foreign.pop_back();
  if (!text.foreign.empty() && text.foreign.back().end > size) text.foreign.back().end = size;
}

// Renders the last message with `value` and the mark behind it under `key`, and cuts at the mark.
Result<ChatText> RenderMarked(const ChatTemplate& chat_template, ChatInput input, const char* key,
                              std::string value) {
  input.messages.back()[key] = value.append(kMark);
  input.generation_prompt = GenerationPrompt::kOmit;
  KVCACHE_ASSIGN_OR_RETURN(ChatText text, chat_template.Render(input));
  const std::size_t end = text.text.rfind(kMark);
  if (end == std::string::npos) {
    return Wrong("the template does not write the last message, so no answer can continue it");
  }
  CutAt(end, text);
  return text;
}

// Lets the template begin an answer with thoughts, and writes these thoughts behind that.
Result<ChatText> RenderBegun(const ChatTemplate& chat_template, ChatInput input,
                             const ThoughtSyntax& syntax) {
  const std::string thoughts = ThoughtsOf(input.messages.back());
  input.messages.erase(input.messages.size() - 1);
  input.generation_prompt = GenerationPrompt::kAdd;
  KVCACHE_ASSIGN_OR_RETURN(ChatText text, chat_template.Render(input));
  if (!EndsInside(text.text, syntax)) {
    return Wrong(
        "the template does not write thoughts, so no answer can continue those of the last "
        "message");
  }
  const std::size_t begin = text.text.size();
  text.text += thoughts;
  text.foreign.push_back({begin, text.text.size()});
  return text;
}

}  // namespace

Result<OpenPart> PrepareLastMessage(ChatInput& input, const ThoughtSyntax& thoughts) {
  const bool asked = input.generation_prompt == GenerationPrompt::kContinue;
  const bool by_last = input.generation_prompt == GenerationPrompt::kByLastMessage;
  if (by_last) input.generation_prompt = GenerationPrompt::kAdd;
  if (!asked && !by_last) return OpenPart::kNone;
  Json& messages = input.messages;
  if (!messages.is_array() || messages.empty() || !messages.back().is_object()) {
    return OpenPart::kNone;  // rendering says what is wrong
  }
  Json& last = messages.back();
  const bool is_answer = IsAnswer(last);
  if (!asked && (!is_answer || HasCalls(last))) return OpenPart::kNone;
  if (HasCalls(last)) {
    return Wrong("the last message cannot be continued: it ends with calls of tools");
  }
  const OpenPart part = PartOf(last, thoughts);
  input.generation_prompt = GenerationPrompt::kAdd;
  if (part != OpenPart::kNone) return part;
  if (!is_answer) return Wrong("the last message cannot be continued: it has no text");
  if (messages.size() > 1) messages.erase(messages.size() - 1);
  return OpenPart::kNone;
}

Result<ChatText> RenderOpen(const ChatTemplate& chat_template, ChatInput input, OpenPart part,
                            const ThoughtSyntax& syntax) {
  if (part == OpenPart::kNone) return chat_template.Render(input);
  std::string text = TextOf(input.messages.back(), "content");
  if (part == OpenPart::kText) {
    return RenderMarked(chat_template, std::move(input), "content", std::move(text));
  }
  ChatInput split = input;
  SplitThoughts(split.messages.back(), syntax);
  const std::string thoughts = ThoughtsOf(split.messages.back());
  for (const char* key : kThoughtsKeys) {
    auto open = RenderMarked(chat_template, split, key, thoughts);
    if (open.ok()) return open;
  }
  auto begun = RenderBegun(chat_template, std::move(split), syntax);
  if (begun.ok() || text.empty()) return begun;
  // The tag is text to this template.
  return RenderMarked(chat_template, std::move(input), "content", std::move(text));
}

bool EndsInside(std::string_view prompt, const ThoughtSyntax& thoughts) {
  const std::size_t end = prompt.find_last_not_of(kSpaces) + 1;
  return !thoughts.begin.empty() && prompt.substr(0, end).ends_with(thoughts.begin);
}

}  // namespace kvcache
