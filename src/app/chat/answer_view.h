// Shows an answer while it is generated: what the model says on standard output, what it thinks on standard error if that
// is a terminal.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string_view>

#include "app/chat/answer_output.h"
#include "app/terminal/terminal.h"
#include "kvcache_engine/chat.h"

namespace kvcache::app {

enum class AnswerBegin : std::uint8_t { kAsWritten, kWithoutSpaces };

class AnswerView {
 public:
  // `progress` must outlive it. Its line is cleared before the answer.
  AnswerView(Progress& progress, AnswerBegin begin) : progress_(progress), begin_(begin) {}

  // Shows what an answer to `request` consists of. This must outlive the answer.
  void Watch(GenerateRequest& request, ChatHandlers& handlers);
  // Ends the answer.
  void End();

 private:
  bool Say(std::string_view text);

  Progress& progress_;
  const AnswerBegin begin_;
  bool begun_ = false;  // the model has said something
  ThoughtsOutput thoughts_;
  AnswerOutput output_;
};

}  // namespace kvcache::app
