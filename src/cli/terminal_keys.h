// Keys and pastes out of a terminal's bytes.
//
// In bracketed paste mode a terminal puts marks around what it pastes:
//
//   ESC[200~  pasted text  ESC[201~
//
// The text may hold anything, an end mark too, which some terminals send as it is. So what
// follows an end mark without a pause may still come from the paste: it is marked as a burst.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "cli/input_bytes.h"

namespace kvcache::cli {

struct Key {
  enum class Kind : std::uint8_t {
    kByte,         // one byte of what somebody types
    kPaste,        // a whole paste
    kEnd,          // the end of input, also within a paste
    kInterrupted,  // Ctrl-C; a paste that it cuts off is gone
  };
  Kind kind = Kind::kEnd;
  char byte = 0;
  std::string pasted;     // with '\n' between lines
  bool in_burst = false;  // the byte came right behind a paste: it may be pasted, too
};

class TerminalKeys {
 public:
  explicit TerminalKeys(InputBytes& input) : input_(input) {}

  // Waits for the next one. Within a paste Ctrl-C is text, unless nothing follows it: so it
  // gets people out of a paste whose end mark is missing.
  Key Next();

 private:
  // Skips the rest of a mark whose ESC is skipped; false: there is another text.
  bool SkipRest(const char* rest);
  Key ReadPaste();

  InputBytes& input_;
};

}  // namespace kvcache::cli
