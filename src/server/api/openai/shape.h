// How OpenAI's chats and completions write an answer.
//
// Thread safety: AnswerShape.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/output/answer_shape.h"

namespace kvcache::server {

enum class OpenAiKind : std::uint8_t { kChat, kText };

// What all choices of an answer have.
struct OpenAiAnswer {
  OpenAiKind kind{};
  std::string model{};
  std::string id{};
  bool include_usage = false;
  bool logprobs = false;
};

// Returns the shape of the choice with this index.
std::shared_ptr<AnswerShape> MakeOpenAiShape(const OpenAiAnswer& answer, int index);

}  // namespace kvcache::server
