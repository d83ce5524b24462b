// Generates the answer to a request, and delivers it whole or as a stream.
//
// Thread safety: free functions.
#pragma once

#include <memory>
#include <vector>

#include "server/output/answer_shape.h"
#include "server/route.h"

namespace kvcache::server {

// Generates, and answers as `shape` writes. The request is cancelled if the client leaves.
void Deliver(const RouteContext& context, const TextRequest& request, bool stream,
             std::shared_ptr<AnswerShape> shape, const Reply& reply);
// One of several choices of an answer.
struct AnswerChoice {
  TextRequest request{};
  std::shared_ptr<AnswerShape> shape{};
  bool counts_prompt = true;  // in the usage; the first choice of each prompt does
};
// The same for several choices, in the order of their indices.
void DeliverChoices(const RouteContext& context, std::vector<AnswerChoice> choices, bool stream,
                    const Reply& reply);

}  // namespace kvcache::server
