// Writes what a model says to standard output: byte for byte to a pipe or a file; to a terminal
// without characters that would control it (see ShownText). Its thoughts go to standard error, if
// that is a terminal.
//
// Thread safety: values.
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

class ThoughtsOutput {
 public:
  // Writes a piece at once, dimmed unless the environment has NO_COLOR.
  void Write(std::string_view text);

  // Ends the thoughts with an empty line, if there are any.
  void End();

 private:
  ShownText shown_;
  bool begun_ = false;
};

}  // namespace kvcache::app
