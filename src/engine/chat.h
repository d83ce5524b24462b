// A conversation whose history stays in the cache: each answer computes only what is new.
//
// Before an answer the whole conversation is written anew by the template, and compared with
// what was written and generated before:
//
//   before   <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n Hello.
//   now      <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n Hello.<|im_end|>\n<|im_…
//            '------------------- kept, with the tokens that were sampled --'-- computed ---
//
// Up to the last special token in the text that both have in common, the tokens are those that
// are in the cache: an answer's as they were sampled, even where its text would be tokenized
// otherwise. From there on they are the tokenizer's. Then all that the cache has in common with
// them is kept. A template that rewrites what it wrote before (reasoning that it drops from
// earlier turns) so costs the tokens from that place on, and the turn says so.
//
// Thread safety: one thread at a time, the engine's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chat_template/chat_format.h"
#include "engine/generate.h"

namespace kvcache {

// Why tokens that were in the cache were of no use.
enum class Rewrite : std::uint8_t {
  kNone,
  kByTemplate,  // the template wrote earlier messages differently
  kByCaller,    // messages, tools or variables were changed
  kTokens,      // the same text gave other tokens than were sampled
};

struct ChatTurn {
  GenerateResult result;           // its prompt_tokens are those that were not kept
  std::int32_t prompt_tokens = 0;  // of the whole prompt
  std::int32_t kept = 0;           // of them, found in the cache
  std::int32_t dropped = 0;        // in the cache, but of no use
  Rewrite rewrite = Rewrite::kNone;
  bool context_full = false;  // why the answer ended
};

// "the template rewrote earlier text"; empty for kNone.
std::string_view RewriteText(Rewrite rewrite);

class Chat {
 public:
  // Speaks for sequence 0 of the engine, which must outlive it.
  Chat(Engine& engine, ChatFormat format);

  const ChatFormat& format() const { return format_; }

  // The conversation, to be changed as one likes between answers; what is no longer part of it
  // is computed anew.
  ChatInput& input() { return input_; }
  const ChatInput& input() const { return input_; }

  // Adds the assistant's answer to the messages. `request` as for Generate; its prompt is
  // ignored, and the context never shifts: the answer ends where it is full. An interrupted
  // answer is kept as far as it came; one interrupted before its first token is not added.
  // Errors: those of ChatFormat::Write and Generate; kCacheFull, with the numbers, for a
  // conversation that does not fit. The messages are unchanged then.
  Result<ChatTurn> Answer(GenerateRequest request);

  Session& session() { return session_; }

 private:
  // What the template wrote and the model said, and its tokens.
  // Moving the JSON cannot throw, though a check inside it looks so.
  // NOLINTNEXTLINE(bugprone-exception-escape)
  struct Written {
    std::string text;
    MarkedTokens marked;
    nlohmann::ordered_json input;  // what it was written from
  };

  Written Align(ChatPrompt prompt, std::size_t* common) const;
  Status Fits(std::size_t tokens) const;
  std::int32_t KeepCommon(const std::vector<std::int32_t>& tokens);
  void Remember(const GenerateResult& result);
  Rewrite ReasonFor(std::size_t common, const nlohmann::ordered_json& input) const;

  Engine& engine_;
  ChatFormat format_;
  ChatInput input_;
  Session session_;
  Written written_;
};

}  // namespace kvcache
