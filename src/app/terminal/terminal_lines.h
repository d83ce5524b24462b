// A simple editor for terminals without libedit: backspace, Ctrl-U, pastes; no history.
#pragma once

#include <memory>

#include "app/terminal/line_editor.h"

namespace kvcache::app {

// Returns an editor for standard input, which is a terminal.
std::unique_ptr<LineEditor> MakeTerminalLines();

}  // namespace kvcache::app
