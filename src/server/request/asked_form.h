// The form of an answer that a request asks for, by the names that all APIs give it: OpenAI's response_format and
// text.format, Ollama's format, Anthropic's output_format, and the fields of llama.cpp, vLLM and SGLang. Each route
// knows all of them. What cannot be enforced is refused.
//
// Thread safety: free functions.
#pragma once

#include "server/output/answer_constraint.h"
#include "server/request/fields.h"

namespace kvcache::server {

// Returns the form; null: any text. The first error is kept in `fields`.
AnswerForm ReadAskedForm(Fields& fields);

}  // namespace kvcache::server
