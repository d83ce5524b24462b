// Joins lines into messages. A message is one line, except:
//
//   """             begins a message of several lines, up to the """ that ends one
//   a \ at the end  continues the message in the next line
//
// Only typed marks count, and only a typed line is a command. Pasted text is text.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <string>

#include "app/terminal/line_editor.h"
#include "app/terminal/terminal.h"

namespace kvcache::app {

struct Message {
  LineEnd end = LineEnd::kLine;  // kLine: there is a message
  std::string text;
  // The text was between """ or pasted: it is never a command, and keeps a // at its beginning.
  bool is_verbatim = false;
};

// Returns the next message; an unfinished one at the end of input counts. LineEnd::kTooLong if it
// has more than `max_bytes`.
Message ReadMessage(LineEditor& lines, std::size_t max_bytes = kMaxTextBytes);

}  // namespace kvcache::app
