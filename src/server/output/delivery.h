// Generates the answer to a request, and delivers it whole or as a stream.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "server/output/answer_shape.h"
#include "server/route.h"

namespace kvcache::server {

// Generates, and answers as `shape` writes. The request is cancelled if the client leaves.
void Deliver(const RouteContext& context, TextRequest request, bool stream,
             std::shared_ptr<AnswerShape> shape);
// One of several choices of an answer.
struct AnswerChoice {
  TextRequest request{};
  std::shared_ptr<AnswerShape> shape{};
  bool counts_prompt = true;  // in the usage; the first choice of each prompt does
};
// Returns `count` choices for each prompt, in the order of the prompts. The choices of a prompt have seeds of their own,
// which do not depend on other prompts.
std::vector<AnswerChoice> MakeChoices(
    TextRequest request, std::vector<Prompt> prompts, std::int64_t count,
    const std::function<std::shared_ptr<AnswerShape>(const Prompt& prompt, int index)>& make_shape);
// The same as Deliver for several choices, in the order of their indices.
void DeliverChoices(const RouteContext& context, std::vector<AnswerChoice> choices, bool stream);

}  // namespace kvcache::server
