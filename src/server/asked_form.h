// The form of an answer that a chat or completion asks for: OpenAI's response_format, and the fields of other servers
// (llama.cpp, vLLM, SGLang, Ollama) that mean the same. What cannot be enforced is refused.
//
// Thread safety: free functions.
#pragma once

#include "server/answer_constraint.h"
#include "server/fields.h"

namespace kvcache::server {

// Returns the form; null: any text. The first error is kept in `fields`.
AnswerForm ReadAskedForm(Fields& fields);

}  // namespace kvcache::server
