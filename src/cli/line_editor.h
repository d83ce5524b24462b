// Lines that somebody types: with editing and history on a terminal, as they are from a pipe.
//
// On a terminal this is libedit, where the build found it; else the terminal's own editing.
//
// Thread safety: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace kvcache::cli {

enum class LineEnd : std::uint8_t {
  kLine,
  kEndOfInput,   // Ctrl-D, or the pipe's end
  kInterrupted,  // Ctrl-C; what was typed is gone
};

class LineEditor {
 public:
  virtual ~LineEditor() = default;

  // Reads a line, without its newline, into `line`. `prompt` is shown on a terminal. Ctrl-C is
  // what CatchInterrupt sees.
  virtual LineEnd Read(const std::string& prompt, std::string& line) = 0;

  // Makes `line` one that the arrow keys bring back.
  virtual void Remember(const std::string& line) = 0;
};

// For standard input.
std::unique_ptr<LineEditor> MakeLineEditor();

}  // namespace kvcache::cli
