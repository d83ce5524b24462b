// Reads what requests say to the model's template: variables, thoughts, and how the prompt ends.
//
//   chat_template_kwargs, reasoning_effort, think   variables
//   add_generation_prompt, continue_final_message   as vLLM documents them: false and true leave the last message
//                                                   open; without either, a last message of the assistant is
//                                                   continued, and others get an answer
//
// Thread safety: free functions.
#pragma once

#include "chat_template/chat_template.h"
#include "server/request/fields.h"

namespace kvcache::server {

// Reads the fields of OpenAI's chat and its neighbors. The first error is kept in `fields`. Templates ignore
// variables that they do not know.
void ReadTemplateFields(Fields& fields, ChatInput& input);

// Reads Ollama's "think". `reasons`: whether the model's answers may begin with thoughts.
void ReadThink(Fields& fields, bool reasons, ChatInput& input);

}  // namespace kvcache::server
