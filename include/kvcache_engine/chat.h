// A chat: a conversation whose history stays in the cache, so that each answer computes only the
// tokens that are new.
//
// Before an answer the template writes the whole conversation again. The new text is compared with
// the text that was written and generated before:
//
//   before   <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n Hello.
//   now      <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n Hello.<|im_end|>\n<|im_…
//            '------------------- kept, with the tokens that were sampled --'-- computed ---
//
// The tokens up to the last special token in the common text are taken from the cache: those of an
// answer as they were sampled, even where its text would be tokenized differently. The tokens
// behind it come from the tokenizer. If a template rewrites earlier text (for example, drops the
// reasoning of earlier answers), the tokens from that place on are computed again, and ChatTurn says
// so.
//
// The model's dialect (src/dialect) divides an answer into thoughts, text and calls of tools. The message that is added has
// all three, and the template writes it as it wants earlier answers.
//
// The cache keeps all that was evaluated, up to two contexts besides the conversation. So a message can
// be edited, an answer taken back and another branch taken up again, and each computes only what no
// earlier prompt had.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "kvcache_engine/conversation.h"
#include "kvcache_engine/generate.h"

namespace kvcache {

// Types of the engine's sources.
class ChatFormat;
class ModelDialect;

// Why tokens in the cache could not be kept.
enum class Rewrite : std::uint8_t {
  kNone,
  kByTemplate,  // the template wrote earlier messages differently
  kByCaller,    // messages, tools or variables were changed
  kTokens,      // the same text has other tokens than were sampled
};

// A call of a tool that the model makes.
struct ChatCall {
  std::string id;  // that no other call of the conversation has
  std::string name;
  std::string arguments;  // a JSON object
  bool complete = true;   // false: the model broke the arguments off, or wrote no object
};

struct ChatTurn {
  GenerateResult result;  // its text: what the model said, without thoughts and calls
  std::string thoughts;
  std::vector<ChatCall> calls;  // only of a conversation with tools
  std::int32_t dropped = 0;  // tokens of the last prompt and answer that the prompt does not have
  Rewrite rewrite = Rewrite::kNone;
  bool context_full = false;  // the answer ended because the context is full
};

// Returns "the template rewrote earlier text"; empty for kNone.
std::string_view RewriteText(Rewrite rewrite);

struct ChatOptions {
  // A Jinja template instead of the model's own; empty: the model's, else ChatML if the vocabulary
  // has its markers, else plain text.
  std::string template_source{};
  // The name of the dialect in which the model thinks and calls tools; empty: what the template says.
  std::string dialect{};
};

struct ChatHandlers {
  // Is called with whole characters of the model's thoughts. When it returns false, generation stops. on_text of the
  // request is called with what the model says.
  std::function<bool(std::string_view)> on_thoughts{};
};

class Chat {
 public:
  // Starts a chat on `engine`, which must outlive the chat; the chat has all sequences of the engine. Errors: the template
  // cannot be parsed, with line and column; kInvalidArgument: an unknown dialect; the message lists all.
  static Result<std::unique_ptr<Chat>> Open(Engine& engine, const ChatOptions& options = {});

  // The same with a dialect of the engine's sources.
  Chat(Engine& engine, ModelDialect dialect);
  ~Chat();
  Chat(const Chat&) = delete;
  Chat& operator=(const Chat&) = delete;

  // The conversation. Callers change it between answers as they like; tokens of text that is no
  // longer part of it are dropped from the cache.
  Conversation& conversation();
  const Conversation& conversation() const;

  // Generates the assistant's answer and adds it to the messages. `request` as for Generate, but
  // its prompt is ignored and the context never shifts: an answer ends when the context is full. An
  // interrupted answer is kept up to its last token; one without a token is not added. Calls come back in the turn once
  // they are whole, or closed where the answer ends; their results are added with Conversation::AddToolResult.
  // Errors: the template refuses the conversation; those of Generate; kCacheFull, with the numbers,
  // if the conversation does not fit. The messages are unchanged then.
  Result<ChatTurn> Answer(GenerateRequest request, ChatHandlers handlers = {});

  // Returns the name of the model's dialect; "plain": one without calls.
  const std::string& dialect_name() const;
  // Returns whether it is known how the model calls tools.
  bool calls_tools() const;

  // Keeps at most so many tokens besides the conversation, from the next answer on. By default they are two
  // contexts. REQUIRES: no answer was generated yet.
  void LimitKept(std::int64_t tokens);

  // For the engine's own sources, which know the types.
  const ChatFormat& format() const;  // that writes the conversation
  ChatInput& input() { return conversation().input(); }
  const ChatInput& input() const { return conversation().input(); }

 private:
  struct Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcache
