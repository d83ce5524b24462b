// A model's text on standard output: byte for byte in a pipe or a file, and on a terminal without
// what would control it (see ShownText).
//
// Thread safety: a value.
#pragma once

#include <string_view>

#include "cli/shown_text.h"

namespace kvcache::cli {

class AnswerOutput {
 public:
  // Writes a piece of the text at once. False: nobody reads it any more.
  bool Write(std::string_view text);

 private:
  ShownText shown_;
};

}  // namespace kvcache::cli
