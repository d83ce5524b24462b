// Reports a call in parts: its name, its arguments as they come, its end.
//
// Thread safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dialect/answer_part.h"

namespace kvcache {

class CallWriter {
 public:
  // Forgets what was not reported.
  void Reset() { *this = {}; }
  // The call that is written. Its arguments come with Give.
  ToolCall& call() { return call_; }
  const ToolCall& call() const { return call_; }
  bool reported() const { return reported_; }

  // Reports the call, and the arguments that came before.
  void Report(std::vector<AnswerPart>* parts);
  // Adds the next piece of the arguments as JSON.
  void Give(std::string_view arguments, std::vector<AnswerPart>* parts);
  // Ends a call that is reported. `closing`: completes the arguments if the model did not.
  void End(const std::string& closing, std::vector<AnswerPart>* parts);

 private:
  ToolCall call_;
  bool reported_ = false;
  std::string arguments_;
};

}  // namespace kvcache
