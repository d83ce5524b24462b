// Finds the dialect of a model: its template writes a conversation with calls and thoughts, and the dialect whose
// parser reads exactly these back is the model's. A template that cannot write calls but names a marker that the
// vocabulary has as a token is trusted. Any other is without calls.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <string_view>

#include "chat_template/chat_format.h"
#include "dialect/dialect.h"
#include "kvcache/status.h"

namespace kvcache {

// What a template says of its model.
struct Recognition {
  Dialect dialect{};      // with the template's thoughts; its markers have no edges
  bool reasons = false;   // answers may begin with thoughts
  HistoryForm history{};  // how conversations come back to the template
};

// `format` writes prompts with tools. `tokenizer` is its own.
Recognition RecogniseDialect(const ChatFormat& format, const Tokenizer& tokenizer);

// The same with the calls and the text of a dialect that is named. Errors: kInvalidArgument: another name; the message
// lists all.
Result<Recognition> RecogniseAs(std::string_view name, const ChatFormat& format,
                                const Tokenizer& tokenizer);

// Returns how a template writes thoughts. An empty end: it does not know them.
ThoughtSyntax ThoughtsOf(const ChatFormat& format);

// Returns whether a prompt ends behind thoughts.
bool EndsBehind(std::string_view prompt, const ThoughtSyntax& thoughts);

}  // namespace kvcache
