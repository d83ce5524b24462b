// How OpenAI's chats and completions write an answer.
//
// Thread safety: AnswerShape.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/output/answer_shape.h"

namespace kvcache::server::openai {

enum class Kind : std::uint8_t { kChat, kText };

// What all choices of an answer have.
struct AnswerSetup {
  Kind kind{};
  std::string model{};
  std::string id{};
  bool include_usage = false;
  bool logprobs = false;
};

// Returns the tokens of an answer, and the bytes of a text, as all of OpenAI's answers have them.
Json Usage(const TextResult& result);
Json BytesJson(const std::string& text);

// Returns the shape of the choice with this index.
std::shared_ptr<AnswerShape> MakeShape(const AnswerSetup& setup, int index);

}  // namespace kvcache::server::openai
