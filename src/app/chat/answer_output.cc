#include "app/chat/answer_output.h"

#include <cstdio>
#include <utility>

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

void ThoughtsOutput::Write(std::string_view text) {
  if (!StderrIsTerminal()) return;
  begun_ = true;
  (void)std::fputs(Dimmed(shown_.Add(text)).c_str(), stderr);
}

void ThoughtsOutput::End() {
  if (!std::exchange(begun_, false)) return;
  (void)std::fprintf(stderr, "%s\n\n", Dimmed(shown_.End()).c_str());
}

}  // namespace kvcache::app
