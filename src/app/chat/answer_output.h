// Writes a model's text to standard output: byte for byte to a pipe or a file; to a terminal
// without characters that would control it (see ShownText).
//
// Thread safety: a value.
#pragma once

#include <string>
#include <string_view>

#include "app/terminal/shown_text.h"

namespace kvcache::app {

class AnswerOutput {
 public:
  // Writes a piece of the text at once. Returns false once nobody reads standard output any more.
  bool Write(std::string_view text);

  // Ends the text: writes the beginning of a character that was held back for the next piece.
  void End();

 private:
  ShownText shown_;
};

}  // namespace kvcache::app
