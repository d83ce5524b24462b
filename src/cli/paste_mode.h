// The terminal's modes while somebody types: bracketed paste, and keys without the kernel's
// editing. Both end with their object, and before a signal ends or suspends the process.
//
// Thread safety: one thread at a time.
#pragma once

#include <string_view>

namespace kvcache::cli {

// A descriptor that writes to the terminal of standard input; -1: there is none.
int TerminalOutput();

// Writes all of it to TerminalOutput(), at once.
void WriteToTerminal(std::string_view text);

// Notes the terminal's modes, which a signal that ends the process brings back. Later calls do
// nothing. A PasteMode and a KeyMode call it.
void SaveTerminalModes();

// Asks the terminal to mark what it pastes (see terminal_keys.h), while one of these lives.
// Does nothing where standard input is no terminal.
class PasteMode {
 public:
  PasteMode();
  ~PasteMode();
  PasteMode(const PasteMode&) = delete;
  PasteMode& operator=(const PasteMode&) = delete;
};

// Each key as it comes, without echo, Ctrl-C and Ctrl-Z as bytes, while one of these lives.
class KeyMode {
 public:
  KeyMode();
  ~KeyMode();
  KeyMode(const KeyMode&) = delete;
  KeyMode& operator=(const KeyMode&) = delete;
};

// Signal handler: puts the terminal's modes back and ends the process as the signal does.
extern "C" void EndBySignal(int signal);

// Sends the process and its group a signal for a key, as the kernel does: SIGTSTP, SIGQUIT.
void SignalGroup(int signal);

}  // namespace kvcache::cli
