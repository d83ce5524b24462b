#include "app/terminal/paste_mode.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "app/terminal/terminal.h"
#include "platform/mapped_file_faults.h"

namespace kvcache::app {
namespace {

constexpr char kOn[] = "\033[?2004h";
constexpr char kOff[] = "\033[?2004l";

// Read by the signal handlers: plain values, set before the handlers are installed.
int output = -1;
termios first_modes{};  // the terminal's modes before the first change
volatile std::sig_atomic_t has_first_modes = 0;
volatile std::sig_atomic_t paste_modes = 0;  // number of PasteMode objects

// Writes nothing to a terminal that accepts nothing (Ctrl-S): the signal must still end the
// process.
void WriteMark(const char* mark) {
  pollfd terminal{output, POLLOUT, 0};
  if (poll(&terminal, 1, 0) != 1) return;
  const ssize_t ignored = write(output, mark, std::strlen(mark));
  (void)ignored;
}

void SetHandler(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_NODEFER | SA_RESTART;  // OnSuspend raises the signal that it handles
  (void)sigemptyset(&action.sa_mask);
  (void)sigaction(signal, &action, nullptr);
}

// Gives the terminal to the shell without our modes, and sets them again when the process
// continues.
extern "C" void OnSuspend(int signal) {
  const int saved_errno = errno;
  termios modes{};
  const bool has_modes = tcgetattr(STDIN_FILENO, &modes) == 0;
  if (paste_modes > 0) WriteMark(kOff);
  if (has_modes) (void)tcsetattr(STDIN_FILENO, TCSANOW, &first_modes);
  SetHandler(signal, SIG_DFL);
  (void)raise(signal);  // stops the process, unless nothing could continue it
  SetHandler(signal, OnSuspend);
  if (has_modes) (void)tcsetattr(STDIN_FILENO, TCSANOW, &modes);
  if (paste_modes > 0) WriteMark(kOn);
  errno = saved_errno;
}

// Installs `handler`, unless the signal is ignored or caught already.
void Catch(int signal, void (*handler)(int)) {
  struct sigaction now {};
  const bool is_default = sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_DFL;
  if (is_default) SetHandler(signal, handler);
}

void RestoreTerminal() {
  if (paste_modes > 0) WriteMark(kOff);
  if (has_first_modes != 0) (void)tcsetattr(STDIN_FILENO, TCSANOW, &first_modes);
}

}  // namespace

extern "C" void EndBySignal(int signal) {
  RestoreTerminal();
  SetHandler(signal, SIG_DFL);
  (void)raise(signal);
}

int TerminalOutput() {
  if (!StdinIsTerminal()) return -1;
  if ((fcntl(STDIN_FILENO, F_GETFL) & O_ACCMODE) == O_RDWR) return STDIN_FILENO;
  if (StderrIsTerminal()) return STDERR_FILENO;
  return StdoutIsTerminal() ? STDOUT_FILENO : -1;
}

void WriteToTerminal(std::string_view text) {
  const int terminal = TerminalOutput();
  while (terminal >= 0 && !text.empty()) {
    const ssize_t count = write(terminal, text.data(), text.size());
    if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) return;
  }
}

void SaveTerminalModes() {
  if (has_first_modes != 0) return;
  output = TerminalOutput();
  if (tcgetattr(STDIN_FILENO, &first_modes) != 0) return;
  has_first_modes = 1;
  for (const int signal : {SIGTERM, SIGHUP, SIGQUIT, SIGABRT}) Catch(signal, EndBySignal);
  Catch(SIGTSTP, OnSuspend);
  SetFatalHook(RestoreTerminal);
}

PasteMode::PasteMode() {
  if (TerminalOutput() < 0) return;
  SaveTerminalModes();
  paste_modes = paste_modes + 1;  // first: a signal may come right after the mark
  if (paste_modes == 1) WriteToTerminal(kOn);
}

PasteMode::~PasteMode() {
  if (paste_modes == 0) return;
  if (paste_modes == 1) WriteToTerminal(kOff);
  paste_modes = paste_modes - 1;
}

KeyMode::KeyMode(ControlKeys control_keys) {
  SaveTerminalModes();
  if (has_first_modes == 0 || tcgetattr(STDIN_FILENO, &before_) != 0) return;
  termios keys = before_;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | IEXTEN);
  keys.c_iflag &= ~static_cast<tcflag_t>(ISTRIP);
  if (control_keys == ControlKeys::kBytes) {
    keys.c_lflag &= ~static_cast<tcflag_t>(ISIG);
    keys.c_iflag &= ~static_cast<tcflag_t>(IXON);
  }
  keys.c_cc[VMIN] = 1;
  keys.c_cc[VTIME] = 0;
  changed_ = tcsetattr(STDIN_FILENO, TCSADRAIN, &keys) == 0;
}

KeyMode::~KeyMode() {
  if (changed_) (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

void SignalGroup(int signal) {
  (void)kill(0, signal);
}

}  // namespace kvcache::app
