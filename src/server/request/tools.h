// The tools of a request, as the model's template reads them.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <vector>

#include "dialect/answer_part.h"
#include "server/output/answer_constraint.h"
#include "server/request/fields.h"

namespace kvcache::server {

struct Tools {
  // [{"type": "function", "function": {"name", "description", "parameters", …}}], with the keys that the function
  // came with, in their order; null: none.
  Json list = nullptr;
  bool one_call = false;
  bool strict = false;            // one of them is strict, so all calls follow their schemas
  bool forced = false;            // the answer is calls and nothing else
  bool limited = false;           // some of them may not be called
  Json callable = Json::array();  // those that may be called
  SharedDialect dialect{};        // of the model
  AnswerForm form{};              // what the above means for the answer; null: any text
};

// Adds the form of a request's answer to that of its tools: the answer has either. Null: any text. Errors:
// kInvalidArgument if the grammar of both cannot be made.
Result<AnswerForm> FormOf(const Tools& tools, const AnswerForm& answer);

// Sets what the parser of an answer knows of its tools.
void SetCalls(const Tools& tools, AnswerSyntax& answer);

// Read "tools" and "tool_choice". Tools of types that are unknown here are skipped. `dialect`: the
// model's. The first error is kept in `fields`.
Tools ReadOpenAiTools(Fields& fields, const SharedDialect& dialect);
// The keys of a function are the tool's own.
Tools ReadResponsesTools(Fields& fields, const SharedDialect& dialect);
Tools ReadAnthropicTools(Fields& fields, const SharedDialect& dialect);
Tools ReadOllamaTools(Fields& fields, const SharedDialect& dialect);

}  // namespace kvcache::server
