#include "app/terminal/terminal_lines.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "app/terminal/input_bytes.h"
#include "app/terminal/paste_mode.h"
#include "app/terminal/shown_text.h"
#include "app/terminal/terminal_keys.h"

namespace kvcache::app {
namespace {

constexpr char kCtrlD = 0x04;
constexpr char kCtrlU = 0x15;
constexpr char kSuspendKey = 0x1a;
constexpr char kEscape = 0x1b;
constexpr char kQuitKey = 0x1c;
constexpr char kDelete = 0x7f;

class TerminalLines : public LineEditor {
 public:
  LineEnd Read(const std::string& prompt, TypedLine& line) override {
    const KeyMode typing(ControlKeys::kBytes);
    const PasteMode paste_mode;
    prompt_ = prompt;
    line = {};
    shown_ = {};
    ShowPrompt();
    for (;;) {
      const Key key = keys_.Next();
      switch (key.kind) {
        case Key::Kind::kInterrupted: return LineEnd::kInterrupted;
        case Key::Kind::kEnd: return LineEnd::kEndOfInput;
        case Key::Kind::kPaste:
          line.AppendPasted(key.pasted);
          WriteToTerminal(shown_.Add(key.pasted));
          continue;
        case Key::Kind::kByte: break;
      }
      if (key.in_burst) line.NotePaste();
      if (key.byte == '\n' || key.byte == '\r') {
        WriteToTerminal(shown_.End() + "\n");
        return LineEnd::kLine;
      }
      if (key.byte == kCtrlD && line.text.empty()) return LineEnd::kEndOfInput;
      Take(key.byte, line);
    }
  }

  void Remember(const std::string&) override {}
  void DropTypedAhead() override { input_.Drop(); }

 private:
  void ShowPrompt() const {
    (void)std::fputs(prompt_.c_str(), stderr);
    (void)std::fflush(stderr);
  }

  void Take(char byte, TypedLine& line) {
    const bool is_control = static_cast<unsigned char>(byte) < 0x20 || byte == kDelete;
    if (!is_control || byte == '\t') {
      line.AppendTyped({&byte, 1});
      WriteToTerminal(shown_.Add({&byte, 1}));
    } else if (byte == kDelete || byte == '\b') {
      RemoveCharacter(line);
    } else if (byte == kCtrlU) {
      line = {};
      ShowAgain(line);
    } else if (byte == kSuspendKey || byte == kQuitKey) {
      Suspend(byte == kSuspendKey ? SIGTSTP : SIGQUIT, line);
    } else if (byte == kEscape) {
      SkipSequence();
    }
  }

  void RemoveCharacter(TypedLine& line) {
    if (line.text.empty()) return;
    const char last = line.text.back();
    std::size_t bytes = 1;
    while (bytes < 4 && bytes < line.text.size() &&
           (static_cast<unsigned char>(line.text[line.text.size() - bytes]) & 0xc0) == 0x80) {
      ++bytes;
    }
    line.RemoveLast(bytes);
    if (last >= 0x20 && last < kDelete) {
      WriteToTerminal("\b \b");
    } else {
      ShowAgain(line);  // the width of the removed character is not known
    }
  }

  // Shows the prompt and the line again, below the old ones.
  void ShowAgain(const TypedLine& line) {
    shown_ = {};
    WriteToTerminal("\n");
    ShowPrompt();
    WriteToTerminal(shown_.Add(line.text));
  }

  // Skips the bytes of arrow keys and the like, which do nothing here.
  void SkipSequence() {
    if (!input_.Follows(InputBytes::kPauseMs)) return;
    const int kind = input_.Peek();
    if (kind != '[' && kind != 'O') return;
    (void)input_.Next();
    while (input_.Follows(InputBytes::kPauseMs)) {
      const int byte = input_.Peek();
      if (byte < 0x20 || byte >= kDelete) return;
      (void)input_.Next();
      if (byte >= 0x40) return;
    }
  }

  void Suspend(int signal, const TypedLine& line) {
    SignalGroup(signal);
    ShowAgain(line);
  }

  KeyMode between_lines_{ControlKeys::kSignals};  // while an answer is written
  InputBytes input_{STDIN_FILENO};
  TerminalKeys keys_{input_};
  ShownText shown_;
  std::string prompt_;
};

}  // namespace

std::unique_ptr<LineEditor> MakeTerminalLines() {
  return std::make_unique<TerminalLines>();
}

}  // namespace kvcache::app
