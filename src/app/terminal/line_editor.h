// Reads lines from a terminal, with editing and history, or from a pipe.
//
// The editor on a terminal is libedit if the build found it, else a simple one. Both recognise
// pastes if the terminal marks them (bracketed paste). A paste never ends a line.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "app/terminal/typed_line.h"

namespace kvcache::app {

enum class LineEnd : std::uint8_t {
  kLine,
  kEndOfInput,   // Ctrl-D, or the end of the pipe
  kInterrupted,  // Ctrl-C; the text typed so far is discarded
  kTooLong,      // more than kMaxTextBytes; the rest of the line is still to be read
};

class LineEditor {
 public:
  virtual ~LineEditor() = default;

  // Reads a line into `line`, without its newline (LF or CR LF). A terminal shows `prompt`. A
  // Ctrl-C that a terminal delivers as a key sets no flag of CatchInterrupt.
  virtual LineEnd Read(const std::string& prompt, TypedLine& line) = 0;

  // Adds `line` to the history, from which the arrow keys bring it back.
  virtual void Remember(const std::string& line) = 0;

  // Discards the text that was typed on a terminal ahead of the next Read.
  virtual void DropTypedAhead() = 0;
};

// Returns an editor for standard input. It buffers bytes, so nothing else can read standard input
// afterwards.
std::unique_ptr<LineEditor> MakeLineEditor();

}  // namespace kvcache::app
