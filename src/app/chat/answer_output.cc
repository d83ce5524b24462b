#include "app/chat/answer_output.h"

#include <cstdio>

#include "app/terminal/terminal.h"

namespace kvcache::app {

bool AnswerOutput::Write(std::string_view text) {
  std::string shown;
  if (StdoutIsTerminal()) {
    shown = shown_.Add(text);
    text = shown;
  }
  (void)std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0;
}

void AnswerOutput::End() {
  const std::string rest = shown_.End();
  (void)std::fwrite(rest.data(), 1, rest.size(), stdout);
  (void)std::fflush(stdout);
}

}  // namespace kvcache::app
