#include "app/terminal/line_editor.h"

#include <unistd.h>

#include "app/terminal/edited_lines.h"
#include "app/terminal/input_bytes.h"
#include "app/terminal/terminal.h"
#include "app/terminal/terminal_lines.h"

namespace kvcache::app {
namespace {

// Lines of a pipe or a file.
class PlainLines : public LineEditor {
 public:
  LineEnd Read(const std::string& /*prompt*/, TypedLine& line) override {
    line = {};
    for (;;) {
      const int byte = input_.Peek();
      if (byte == InputBytes::kInterrupted) return LineEnd::kInterrupted;
      if (byte == InputBytes::kEnd) {
        return line.text.empty() ? LineEnd::kEndOfInput : LineEnd::kLine;
      }
      const bool whole = TakeUpToNewline(line.text);
      if (line.text.size() > kMaxTextBytes) return LineEnd::kTooLong;
      if (whole) return LineEnd::kLine;
    }
  }

  void Remember(const std::string&) override {}
  void DropTypedAhead() override {}

 private:
  // Moves buffered bytes to `line`; true: it is whole.
  bool TakeUpToNewline(std::string& line) {
    const std::string_view bytes = input_.buffered();
    const std::size_t newline = bytes.find('\n');
    line += bytes.substr(0, newline);
    const bool whole = newline != std::string_view::npos;
    input_.Skip(whole ? newline + 1 : bytes.size());
    if (whole && line.ends_with('\r')) line.pop_back();
    return whole;
  }

  InputBytes input_{STDIN_FILENO};
};

}  // namespace

std::unique_ptr<LineEditor> MakeLineEditor() {
  if (!StdinIsTerminal()) return std::make_unique<PlainLines>();
  auto edited = MakeEditedLines();
  return edited != nullptr ? std::move(edited) : MakeTerminalLines();
}

}  // namespace kvcache::app
