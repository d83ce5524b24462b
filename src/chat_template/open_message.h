// Leaves the last message of a conversation open: the prompt ends with its text, and an answer continues it.
//
//   <|im_start|>user\nWrite a rhyme.<|im_end|>\n<|im_start|>assistant\nRoses are
//
// The template writes the message with a mark behind its text; what stands before the mark is the prompt. So
// the text stands where the template puts texts, with its spaces at the end. (transformers' option
// continue_final_message looks for the text itself, and fails for texts that the template trims.)
//
// Thoughts that have no text behind them are continued as thoughts: those of "reasoning_content" and the other keys under
// which templates look for them, and a content that begins with <think> and has no </think>, or with the marks of the
// model's family.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>

#include "chat_template/chat_template.h"
#include "chat_template/thought_syntax.h"
#include "kvcache/status.h"

namespace kvcache {

// What of the last message an answer continues.
enum class OpenPart : std::uint8_t { kNone, kText, kThoughts };

// Decides kByLastMessage and kContinue by the last message: changes `input` to what RenderOpen takes. Messages
// of the assistant that say nothing are as if they were not there. Errors: kInvalidArgument if kContinue is
// asked for, and there is no text to continue.
Result<OpenPart> PrepareLastMessage(ChatInput& input, const ThoughtSyntax& thoughts);

// Renders a prepared conversation up to the end of that part. Errors: those of ChatTemplate::Render;
// kInvalidArgument if the template does not write the part.
Result<ChatText> RenderOpen(const ChatTemplate& chat_template, ChatInput input, OpenPart part,
                            const ThoughtSyntax& thoughts);

// Returns whether a prompt ends inside of thoughts.
bool EndsInside(std::string_view prompt, const ThoughtSyntax& thoughts);

}  // namespace kvcache
