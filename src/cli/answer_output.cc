#include "cli/answer_output.h"

#include <cstdio>
#include <string>

#include "cli/terminal.h"

namespace kvcache::cli {

bool AnswerOutput::Write(std::string_view text) {
  std::string shown;
  if (StdoutIsTerminal()) {
    shown = shown_.Add(text);
    text = shown;
  }
  (void)std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0;
}

}  // namespace kvcache::cli
