// Sets the terminal's modes for a chat: bracketed paste, and keys without the kernel's line
// editing. Each mode ends with its object, and before a signal ends or suspends the process.
//
// Thread safety: one thread at a time.
#pragma once

#include <termios.h>

#include <cstdint>
#include <string_view>

namespace kvcache::app {

// Returns a descriptor that writes to the terminal of standard input; -1 if there is none.
int TerminalOutput();

// Writes all of `text` to TerminalOutput() at once.
void WriteToTerminal(std::string_view text);

// Saves the terminal's modes. A signal that ends the process then restores them first. Later calls
// do nothing. PasteMode and KeyMode call it.
void SaveTerminalModes();

// Asks the terminal to mark pastes (see terminal_keys.h), while one of these lives. Does nothing if
// standard input is no terminal.
class PasteMode {
 public:
  PasteMode();
  ~PasteMode();
  PasteMode(const PasteMode&) = delete;
  PasteMode& operator=(const PasteMode&) = delete;
};

enum class ControlKeys : std::uint8_t {
  kBytes,    // Ctrl-C and Ctrl-Z are bytes of the input
  kSignals,  // they send their signals
};

// Delivers each key at once and without echo, while one of these lives; the destructor brings the
// modes before it back. With the kernel's own line editing a line of more than 4,095 bytes would
// lose its end, and with it the mark that ends a paste.
class KeyMode {
 public:
  explicit KeyMode(ControlKeys control_keys);
  ~KeyMode();
  KeyMode(const KeyMode&) = delete;
  KeyMode& operator=(const KeyMode&) = delete;

 private:
  bool changed_ = false;
  termios before_{};
};

// A signal handler: restores the terminal's modes and ends the process as the signal does.
extern "C" void EndBySignal(int signal);

// Sends the process and its group the signal of a key (SIGTSTP, SIGQUIT), as the kernel does.
void SignalGroup(int signal);

}  // namespace kvcache::app
