// Splits a terminal's bytes into keys and pastes.
//
// In bracketed paste mode a terminal puts marks around what it pastes:
//
//   ESC[200~  pasted text  ESC[201~
//
// The text may hold anything, even an end mark, which some terminals do not remove. So bytes that
// follow an end mark without a pause may still come from the paste: they are marked as a burst.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "app/terminal/input_bytes.h"

namespace kvcache::app {

struct Key {
  enum class Kind : std::uint8_t {
    kByte,         // one typed byte
    kPaste,        // a whole paste
    kEnd,          // the end of input, also within a paste
    kInterrupted,  // Ctrl-C; an unfinished paste is discarded
  };
  Kind kind = Kind::kEnd;
  char byte = 0;
  std::string pasted;     // with '\n' between lines
  bool in_burst = false;  // the byte follows a paste at once: it may be pasted, too
};

class TerminalKeys {
 public:
  explicit TerminalKeys(InputBytes& input) : input_(input) {}

  // Waits for the next key or paste. Within a paste Ctrl-C is text, unless nothing follows it: so
  // Ctrl-C ends a paste whose end mark is missing.
  Key Next();

 private:
  // Skips the rest of a mark whose ESC is already skipped. Returns false, and skips nothing, if
  // other bytes follow.
  bool SkipRest(const char* rest);
  Key ReadPaste();

  InputBytes& input_;
};

}  // namespace kvcache::app
