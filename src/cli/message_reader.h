// Messages out of lines: one line each, but
//
//   """             begins a message of several lines, up to the """ that ends one
//   a \ at the end  goes on in the next line
//
// Only typed marks count, and only a typed line is a command: what is pasted is text.
//
// Thread safety: one thread at a time.
#pragma once

#include <string>

#include "cli/line_editor.h"

namespace kvcache::cli {

struct Message {
  LineEnd end = LineEnd::kLine;  // kLine: there is a message
  std::string text;
  // Between """, or pasted: never a command, and a // at its beginning stays.
  bool is_verbatim = false;
};

// The next message. An unfinished one at the end of input counts.
Message ReadMessage(LineEditor& lines);

}  // namespace kvcache::cli
