// Lines that somebody types: with editing and history on a terminal, as they are from a pipe.
//
// On a terminal this is libedit, where the build found it; else a simple editor. Both know what
// is pasted where the terminal marks it (bracketed paste); a paste never ends a line.
//
// Thread safety: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/typed_line.h"

namespace kvcache::cli {

enum class LineEnd : std::uint8_t {
  kLine,
  kEndOfInput,   // Ctrl-D, or the pipe's end
  kInterrupted,  // Ctrl-C; what was typed is gone
  kTooLong,      // more than kMaxTextBytes; the rest of the line is still to be read
};

class LineEditor {
 public:
  virtual ~LineEditor() = default;

  // Reads a line, without its newline (LF or CR LF), into `line`. `prompt` is shown on a
  // terminal. A Ctrl-C on a terminal is the result alone; elsewhere it is what CatchInterrupt
  // sees, too.
  virtual LineEnd Read(const std::string& prompt, TypedLine& line) = 0;

  // Makes `line` one that the arrow keys bring back.
  virtual void Remember(const std::string& line) = 0;

  // Forgets what was typed ahead of the next line on a terminal.
  virtual void DropTypedAhead() = 0;
};

// For standard input, whose bytes it buffers: nothing else can read it afterwards.
std::unique_ptr<LineEditor> MakeLineEditor();

}  // namespace kvcache::cli
